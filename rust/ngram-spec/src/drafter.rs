//! One request: its context, and drafts for what comes next.

use std::sync::Arc;

use crate::acceptance::AcceptanceModel;
use crate::automaton::{SuffixAutomaton, TokenId};
use crate::error::{Error, check_tokens};
use crate::matcher::Matcher;
use crate::policy::{DraftCost, DraftPlan};

/// What a drafter may do. One set serves every load: `draft_cost` is the only knob.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    /// Upper limit per step.
    pub max_draft_tokens: u32,
    /// Cost of verifying draft tokens, in target steps.
    pub draft_cost: DraftCost,
    /// Shorter matches draft nothing.
    pub min_match_len: u32,
    /// A draft ends with the first of these.
    pub eos_token_ids: Vec<TokenId>,
    /// Estimates acceptance.
    pub acceptance: Arc<AcceptanceModel>,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self {
            max_draft_tokens: 16,
            draft_cost: DraftCost::PerToken(0.05),
            min_match_len: 1,
            eos_token_ids: Vec::new(),
            acceptance: Arc::default(),
        }
    }
}

impl DraftOptions {
    /// Refuses options outside their range.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] with the option's name, the rule and the value.
    pub fn check(&self) -> Result<(), Error> {
        if self.min_match_len == 0 {
            return Err(Error::option("min_match_len", "at least 1", 0));
        }
        if let Some(id) = self.eos_token_ids.iter().find(|id| **id < 0) {
            return Err(Error::option("eos_token_ids", "non-negative token ids", id));
        }
        Ok(())
    }
}

/// Tokens proposed for one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The draft tokens.
    pub token_ids: Vec<TokenId>,
    /// Probability of each being accepted given that those before it were.
    pub probabilities: Vec<f64>,
    /// Length of the match that the draft continues; 0 when nothing matched.
    pub match_len: usize,
}

/// Drafts for one request.
///
/// ```
/// use ngram_spec::{DraftOptions, Drafter};
///
/// let mut drafter = Drafter::new(&[1, 2, 3, 4, 9], DraftOptions::default())?;
/// drafter.extend(&[1, 2])?;
/// let draft = drafter.draft(2);
/// assert_eq!(draft.token_ids, [3, 4]);
/// assert_eq!(draft.match_len, 2);
/// # Ok::<(), ngram_spec::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Drafter {
    automaton: SuffixAutomaton,
    options: Arc<DraftOptions>,
}

impl Drafter {
    /// Starts from a prompt.
    ///
    /// # Errors
    /// When an option is outside its range or the prompt holds a negative id.
    pub fn new(prompt: &[TokenId], options: impl Into<Arc<DraftOptions>>) -> Result<Self, Error> {
        let options = options.into();
        options.check()?;
        let mut drafter = Self { automaton: SuffixAutomaton::default(), options };
        drafter.extend(prompt)?;
        Ok(drafter)
    }

    /// Appends what the target model emitted.
    ///
    /// # Errors
    /// When there is a negative id among the tokens, or the context grows too long. Nothing is appended then.
    pub fn extend(&mut self, token_ids: &[TokenId]) -> Result<(), Error> {
        check_tokens(self.automaton.tokens().len(), token_ids)?;
        self.automaton.reserve(token_ids.len());
        for &token in token_ids {
            self.automaton.push(token);
        }
        Ok(())
    }

    /// Proposes the next tokens, at most `max_draft_tokens` of them.
    #[must_use]
    pub fn draft(&self, max_draft_tokens: u32) -> Draft {
        let mut draft = Draft::default();
        let options = &*self.options;
        let mut matcher = Matcher::new(&self.automaton);
        let mut plan = DraftPlan::new(&options.draft_cost, max_draft_tokens);
        let mut goes_on = max_draft_tokens > 0;
        while goes_on {
            let mut matches = matcher.matches().peekable();
            let Some(longest) = matches.peek().copied().filter(|found| found.len >= options.min_match_len) else {
                break;
            };
            let probability = options.acceptance.probability(matches);
            draft.token_ids.push(longest.next.token);
            draft.probabilities.push(probability);
            if draft.token_ids.len() == 1 {
                draft.match_len = longest.len as usize;
            }
            goes_on = plan.push(probability) && !options.eos_token_ids.contains(&longest.next.token);
            matcher.advance();
        }
        draft.token_ids.truncate(plan.best_len());
        draft.probabilities.truncate(plan.best_len());
        draft
    }

    /// The context, in order.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        self.automaton.tokens()
    }

    /// Bytes that the index holds.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.automaton.num_bytes()
    }
}
