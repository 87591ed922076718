//! One request: its context, and drafts for what comes next.

use std::sync::Arc;

use crate::acceptance::AcceptanceModel;
use crate::automaton::{Continuation, SuffixAutomaton, TokenId};
use crate::copying::Copying;
use crate::error::{Error, check_tokens};
use crate::features::{Features, HitRates, Situation};
use crate::matcher::Match;
use crate::policy::{DraftCost, DraftPlan};
use crate::walk::Walk;

/// The highest limit per step. Engines verify far fewer: vLLM at most 128.
pub const MAX_DRAFT_TOKENS: u32 = 65_536;

/// What a drafter may do. One set serves every load: `draft_cost` is the only knob.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    /// Upper limit per step.
    pub max_draft_tokens: u32,
    /// Cost of verifying draft tokens, in target steps.
    pub draft_cost: DraftCost,
    /// Shorter matches draft nothing. What goes on with a copy behind an edit counts as a match of the copied length.
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
        if self.max_draft_tokens > MAX_DRAFT_TOKENS {
            return Err(Error::option("max_draft_tokens", "at most 65536", self.max_draft_tokens));
        }
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

impl Draft {
    pub(crate) fn clear(&mut self) {
        self.token_ids.clear();
        self.probabilities.clear();
        self.match_len = 0;
    }
}

/// Room for a draft of this length is made at once.
const USUAL_LEN: usize = 16;
/// Of a match this long no shorter one knows better.
const MAX_DOUBTED_LEN: u32 = 8;

/// One token that could come next at some position of a draft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: TokenId,
    /// Probability of its being accepted.
    pub probability: f64,
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
    copying: Option<Copying>,
    rates: HitRates,
    /// The last draft, until it is known what became of it; empty where nothing is learned from that.
    pending: Vec<TokenId>,
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
        let mut drafter = Self {
            automaton: SuffixAutomaton::default(),
            copying: None,
            rates: HitRates::default(),
            pending: Vec::new(),
            options,
        };
        drafter.extend(prompt)?;
        Ok(drafter)
    }

    /// Appends what the target model emitted, and learns from it what became of the last draft.
    ///
    /// # Errors
    /// When there is a negative id among the tokens, or the context grows too long. Nothing is appended then.
    pub fn extend(&mut self, token_ids: &[TokenId]) -> Result<(), Error> {
        check_tokens(self.automaton.tokens().len(), token_ids)?;
        self.learn(token_ids);
        self.automaton.reserve(token_ids.len());
        let mut foretold = self.longest_continuation();
        for &token in token_ids {
            self.rates = self.rates.after(foretold.is_some_and(|(_, next)| next.token == token));
            self.automaton.push(token);
            #[cfg(test)]
            crate::faults::tests::plant(crate::faults::tests::FAULTY_TO_INDEX, token);
            foretold = self.longest_continuation();
            self.copying = Copying::after(self.copying, self.automaton.tokens(), foretold);
        }
        Ok(())
    }

    /// The longest match and what followed it.
    fn longest_continuation(&self) -> Option<(u32, Continuation)> {
        let state = self.automaton.longest_match();
        let len = self.automaton.len_of(state);
        if len == 0 { None } else { Some((len, self.automaton.continuation(state)?)) }
    }

    /// Forgets the last draft: what comes next is not what became of it.
    pub(crate) fn forget_draft(&mut self) {
        self.pending = Vec::new();
    }

    /// A rejection teaches about the first rejected token only; where the emitted tokens end sooner, what lies behind
    /// them was cut and teaches nothing.
    ///
    /// The context is still what the draft was made from, so what spoke for its tokens is found again on the same way,
    /// and need not be kept.
    fn learn(&mut self, token_ids: &[TokenId]) {
        if self.pending.is_empty() || token_ids.is_empty() {
            return;
        }
        let mut walk = self.start_walk();
        for (&draft, &token) in self.pending.iter().zip(token_ids) {
            let situation = walk.situation();
            self.options.acceptance.observe(&situation.features(draft), draft == token);
            if draft != token {
                break;
            }
            walk.advance(&situation, draft);
        }
        self.pending.clear();
    }

    /// Proposes the next tokens, at most `max_draft_tokens` of them and never more than [`MAX_DRAFT_TOKENS`].
    #[must_use]
    pub fn draft(&mut self, max_draft_tokens: u32) -> Draft {
        let mut draft = Draft::default();
        self.draft_what_pays(max_draft_tokens, &mut draft);
        draft
    }

    /// The same into an empty draft, whose room may have served before.
    pub(crate) fn draft_what_pays(&mut self, max_draft_tokens: u32, draft: &mut Draft) {
        let options = Arc::clone(&self.options);
        let mut plan = DraftPlan::new(&options.draft_cost, max_draft_tokens, f64::from(self.rates.slow));
        self.draft_while(max_draft_tokens, draft, |probability| plan.push(probability));
        self.cut(draft, plan.best_len());
    }

    /// Drafts, into an empty draft, until `goes_on`, which is told each token's probability, returns false; that token
    /// is still drafted.
    pub(crate) fn draft_while(
        &mut self,
        max_draft_tokens: u32,
        draft: &mut Draft,
        mut goes_on: impl FnMut(f64) -> bool,
    ) {
        self.pending.clear();
        self.each_position(max_draft_tokens, |situation, candidates| {
            let Candidate { token, probability } = candidates[0];
            if draft.token_ids.is_empty() {
                draft.match_len = situation.longest.map_or(0, |found| found.len as usize);
                draft.token_ids.reserve(USUAL_LEN);
                draft.probabilities.reserve(USUAL_LEN);
            }
            draft.token_ids.push(token);
            draft.probabilities.push(probability);
            #[cfg(test)]
            crate::faults::tests::plant(crate::faults::tests::FAULTY_TO_DRAFT, token);
            goes_on(probability)
        });
        if self.options.acceptance.learns() {
            self.pending.extend_from_slice(&draft.token_ids);
        }
    }

    /// Shortens the draft just made; nothing is learned from what is cut.
    pub(crate) fn cut(&mut self, draft: &mut Draft, len: usize) {
        draft.token_ids.truncate(len);
        draft.probabilities.truncate(len);
        self.pending.truncate(len);
    }

    /// All candidates at each position of the draft that would be made if every token paid; the one that is drafted
    /// comes first. For fitting and for looking into a draft.
    #[must_use]
    pub fn candidates(&self, max_draft_tokens: u32) -> Vec<Vec<(Candidate, Features)>> {
        let mut positions = Vec::new();
        self.each_position(max_draft_tokens, |situation, candidates| {
            let described = candidates.iter().map(|candidate| (*candidate, situation.features(candidate.token)));
            positions.push(described.collect());
            true
        });
        positions
    }

    fn start_walk(&self) -> Walk<'_> {
        Walk::new(&self.automaton, self.copying, self.rates, self.options.min_match_len)
    }

    /// Goes on with the most probable candidate, position by position, until `visit` returns false.
    fn each_position(&self, max_draft_tokens: u32, mut visit: impl FnMut(&Situation<'_>, &[Candidate]) -> bool) {
        let options = &*self.options;
        let weights = options.acceptance.weights();
        let mut walk = self.start_walk();
        let mut room = [Candidate { token: -1, probability: 0.0 }; 3];
        for _ in 0..max_draft_tokens.min(MAX_DRAFT_TOKENS) {
            let situation = walk.situation();
            let Situation { longest, shorter, .. } = situation;
            let other = shorter.filter(|found| {
                found.len >= options.min_match_len && longest.is_some_and(|longest| longest.len < MAX_DOUBTED_LEN)
            });
            let tokens_of = |found: Option<Match>| found.map(|found| found.next.token);
            let mut num_candidates = 0;
            for token in [tokens_of(longest), situation.expected(), tokens_of(other)] {
                if let Some(token) = token
                    && !room[..num_candidates].iter().any(|other| other.token == token)
                {
                    room[num_candidates] = Candidate { token, probability: weights.probability_of(&situation, token) };
                    num_candidates += 1;
                }
            }
            let candidates = &mut room[..num_candidates];
            // Among equals the first one is drafted: the longest match knows best.
            let best = (0..candidates.len())
                .reduce(|best, at| if candidates[at].probability > candidates[best].probability { at } else { best });
            let Some(best) = best else { return };
            candidates.swap(0, best);
            let token = candidates[0].token;
            let goes_on = visit(&situation, candidates);
            if !goes_on || options.eos_token_ids.contains(&token) {
                return;
            }
            walk.advance(&situation, token);
        }
    }

    /// The context, in order.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        self.automaton.tokens()
    }

    /// The copy that is going on, or that an edit has just broken.
    #[must_use]
    pub fn copying(&self) -> Option<Copying> {
        self.copying
    }

    /// Bytes that the index holds.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.automaton.num_bytes() + self.pending.capacity() * size_of::<TokenId>()
    }
}
