//! A draft's way through the context: what is known at each of its positions.

use crate::automaton::{SuffixAutomaton, TokenId};
use crate::copying::Copying;
use crate::features::{HitRates, Situation};
use crate::matcher::Matcher;

/// Where a draft stands: the matches there, the copy that goes on, and how well tokens were foretold.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    automaton: &'a SuffixAutomaton,
    matcher: Matcher<'a>,
    copying: Option<Copying>,
    rates: HitRates,
    min_match_len: u32,
    position: usize,
}

impl<'a> Walk<'a> {
    /// Starts at the end of the context.
    pub(crate) fn new(
        automaton: &'a SuffixAutomaton,
        copying: Option<Copying>,
        rates: HitRates,
        min_match_len: u32,
    ) -> Self {
        let copying = copying.filter(|copying| copying.num_copied >= min_match_len);
        let copying = copying.map(|copying| copying.located(automaton.tokens()));
        Self { automaton, matcher: Matcher::new(automaton), copying, rates, min_match_len, position: 0 }
    }

    /// What is known here.
    pub(crate) fn situation(&mut self) -> Situation<'a> {
        let mut matches = self.matcher.matches();
        let longest = matches.next().filter(|found| found.len >= self.min_match_len);
        let shorter = longest.and_then(|_| matches.next());
        Situation {
            automaton: self.automaton,
            longest,
            shorter,
            copying: self.copying,
            rates: self.rates.log_odds(),
            position: self.position,
        }
    }

    /// Goes on with a token, from the situation here.
    pub(crate) fn advance(&mut self, here: &Situation<'_>, token: TokenId) {
        self.matcher.advance(token);
        self.rates = self.rates.after(here.longest.is_some_and(|found| found.next.token == token));
        // No search for a way back within a draft: nothing has been emitted that could show it.
        self.copying = self.copying.filter(|_| here.expected() == Some(token)).map(Copying::advance);
        self.position += 1;
    }
}
