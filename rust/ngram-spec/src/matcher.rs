//! The longest match of what the context ends with, followed token by token.

use crate::automaton::{Continuation, StateId, SuffixAutomaton, TokenId};

/// One match: its length, and what followed it earlier in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The automaton's state.
    pub state: StateId,
    /// Tokens of the match.
    pub len: u32,
    /// What followed it.
    pub next: Continuation,
}

/// Where a draft stands: the longest suffix of context and draft that the context continues.
///
/// A draft that reaches the end of the context goes on at the next shorter match and so runs on into what it has
/// itself drafted, which is what periodic text needs.
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
    #[inline]
    pub fn matches(&mut self) -> Matches<'a> {
        // The end of the context has no continuation.
        while self.len > 0 && self.automaton.continuation(self.state).is_none() {
            self.state = self.automaton.link(self.state);
            self.len = self.automaton.len_of(self.state);
        }
        Matches { automaton: self.automaton, state: self.state, len: Some(self.len) }
    }

    /// Goes on with a token: the matches become those that it has followed.
    pub fn advance(&mut self, token: TokenId) {
        while self.len > 0 {
            if let Some(next) = self.automaton.follow(self.state, token) {
                (self.state, self.len) = (next, self.len + 1);
                return;
            }
            self.state = self.automaton.link(self.state);
            self.len = self.automaton.len_of(self.state);
        }
        let single = self.automaton.follow(StateId::ROOT, token);
        (self.state, self.len) = single.map_or((StateId::ROOT, 0), |state| (state, 1));
    }
}

/// Iterates over the matches at one point of a draft; each one is looked up when it is asked for.
#[derive(Clone, Debug)]
pub struct Matches<'a> {
    automaton: &'a SuffixAutomaton,
    state: StateId,
    /// Length of the first match, which may be shorter than its state's longest string.
    len: Option<u32>,
}

impl Iterator for Matches<'_> {
    type Item = Match;

    #[inline]
    fn next(&mut self) -> Option<Match> {
        let len = self.len.take().unwrap_or_else(|| {
            self.state = self.automaton.link(self.state);
            self.automaton.len_of(self.state)
        });
        if len == 0 {
            // The root is its own link, so the iteration has ended for good.
            return None;
        }
        Some(Match { state: self.state, len, next: self.automaton.continuation(self.state)? })
    }
}
