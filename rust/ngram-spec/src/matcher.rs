//! The longest match of what the context ends with, followed token by token.

use crate::automaton::{Continuation, StateId, SuffixAutomaton};

/// One match: its length, and what followed it earlier in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Tokens of the match.
    pub len: u32,
    /// What followed it.
    pub next: Continuation,
}

/// Where a draft stands: the longest suffix of context and draft that the context continues.
///
/// Each step takes the most frequent continuation of that match. A draft that reaches the end of the context goes on
/// at the next shorter match and so runs on into what it has itself drafted, which is what periodic text needs.
#[derive(Clone, Debug)]
pub struct Matcher<'a> {
    automaton: &'a SuffixAutomaton,
    state: StateId,
    len: u32,
}

impl<'a> Matcher<'a> {
    /// Starts at the end of the context.
    #[must_use]
    pub fn new(automaton: &'a SuffixAutomaton) -> Self {
        let state = automaton.longest_match();
        Self { automaton, state, len: automaton.len_of(state) }
    }

    /// The matches at this point, longest first; none when nothing matches.
    pub fn matches(&mut self) -> impl Iterator<Item = Match> {
        // The end of the context has no continuation.
        while self.len > 0 && self.automaton.continuation(self.state).is_none() {
            self.state = self.automaton.link(self.state);
            self.len = self.automaton.len_of(self.state);
        }
        let automaton = self.automaton;
        let first = (self.state, self.len);
        std::iter::successors(Some(first), move |&(state, _)| {
            let shorter = automaton.link(state);
            Some((shorter, automaton.len_of(shorter)))
        })
        .take_while(|&(_, len)| len > 0)
        .filter_map(move |(state, len)| Some(Match { len, next: automaton.continuation(state)? }))
    }

    /// Takes the most frequent continuation of the longest match.
    pub fn advance(&mut self) {
        if let Some(next) = self.automaton.follow(self.state) {
            self.state = next;
            self.len += 1;
        }
    }
}
