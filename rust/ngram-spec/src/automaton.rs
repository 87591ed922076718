//! A suffix automaton that grows with the context and knows, for every string in it, what followed.
//!
//! A state stands for the strings that have occurred at exactly the same places. Following the suffix links from the
//! state of the whole context visits all matches of its end, longest first. Construction is the classic online one
//! (Blumer et al., 1985: amortised constant time per token), with two changes:
//!
//! - **Prefixes are implicit.** Most prefixes of a text occur once, have one transition (the next token) and are
//!   nobody's link. Such a *leaf* needs its link and nothing else; it becomes a branching state when it occurs again.
//!   This halves the memory, and a draft that copies one passage reads the text itself.
//! - **Continuations are counted.** When a token is appended, every suffix of the context has been followed by it. New
//!   transitions are always counted; of the suffixes that were followed by this token before, only the
//!   [`MAX_COUNTED_LINKS`] longest are, since periodic text has thousands.

use crate::edges::{Edge, EdgeArena, EdgeList, Slot, reserve, u32_from};

/// A token's id in the target model's vocabulary; `i32` as in the engines' arrays. Negative ids are refused.
pub type TokenId = i32;

/// Tokens that one automaton can hold. States and edges number a few per token and have 31-bit names.
pub const MAX_CONTEXT_LEN: usize = (1 << 28) - 1;

/// Suffixes whose count is raised per appended token, among those that this token has followed before.
pub const MAX_COUNTED_LINKS: u32 = 32;

/// A state of the automaton: a leaf (one prefix of the context) or a branching state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId(u32);

impl StateId {
    /// The state of the empty string.
    pub const ROOT: Self = Self(0);
    const LEAF: u32 = 1 << 31;

    const fn leaf(prefix_len: u32) -> Self {
        Self(prefix_len | Self::LEAF)
    }

    /// The length of the prefix that a leaf stands for.
    const fn as_leaf(self) -> Option<u32> {
        if self.0 & Self::LEAF == 0 { None } else { Some(self.0 & !Self::LEAF) }
    }

    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What has followed a state's strings so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The token that followed most often; among equals the one that reached that count last.
    pub token: TokenId,
    /// How often it did.
    pub count: u32,
    /// How often any token did.
    pub total: u32,
    /// Index of the token that followed most recently; the match ends just before it.
    pub end: u32,
}

#[derive(Clone, Debug)]
struct State {
    /// Length of the longest string of the state; the shortest is one longer than the link's longest.
    len: u32,
    link: StateId,
    end: u32,
    edges: EdgeList,
}

/// Per prefix: its link while it is a leaf, or the state that it has become.
#[derive(Clone, Copy, Debug)]
struct Prefix(u32);

impl Prefix {
    const BRANCHING: u32 = 1 << 31;

    const fn leaf(link: StateId) -> Self {
        Self(link.0)
    }

    const fn branching(state: StateId) -> Self {
        Self(state.0 | Self::BRANCHING)
    }

    const fn as_branching(self) -> Option<StateId> {
        if self.0 & Self::BRANCHING == 0 { None } else { Some(StateId(self.0 & !Self::BRANCHING)) }
    }

    /// The link of a prefix that is a leaf.
    const fn link(self) -> StateId {
        StateId(self.0)
    }
}

/// All strings of a context and what followed them.
///
/// ```
/// use ngram_spec::SuffixAutomaton;
///
/// let mut automaton = SuffixAutomaton::default();
/// for token in [5, 6, 7, 5, 6] {
///     automaton.push(token);
/// }
/// let state = automaton.longest_match();
/// assert_eq!(automaton.len_of(state), 2); // "5 6" has stood there before
/// assert_eq!(automaton.continuation(state).map(|next| next.token), Some(7));
/// ```
#[derive(Clone, Debug)]
pub struct SuffixAutomaton {
    tokens: Vec<TokenId>,
    /// One per prefix, the empty one included.
    prefixes: Vec<Prefix>,
    states: Vec<State>,
    arena: EdgeArena,
}

impl Default for SuffixAutomaton {
    fn default() -> Self {
        let root = State { len: 0, link: StateId::ROOT, end: 0, edges: EdgeList::empty() };
        Self {
            tokens: Vec::new(),
            prefixes: vec![Prefix::branching(StateId::ROOT)],
            states: vec![root],
            arena: EdgeArena::default(),
        }
    }
}

impl SuffixAutomaton {
    /// The context, in order.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Bytes held, spare capacity included.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.tokens.capacity() * size_of::<TokenId>()
            + self.prefixes.capacity() * size_of::<Prefix>()
            + self.states.capacity() * size_of::<State>()
            + self.arena.num_bytes()
    }

    /// Makes room for that many more tokens in the arrays whose final size is known.
    pub fn reserve(&mut self, num_tokens: usize) {
        reserve(&mut self.tokens, num_tokens);
        reserve(&mut self.prefixes, num_tokens);
    }

    /// Appends a token to the context. Amortised constant time, whatever the context length.
    ///
    /// The caller has checked that the id is not negative and that the length stays within [`MAX_CONTEXT_LEN`].
    pub fn push(&mut self, token: TokenId) {
        debug_assert!(token >= 0 && self.tokens.len() < MAX_CONTEXT_LEN);
        let end = u32_from(self.tokens.len());
        let target = StateId::leaf(end + 1);
        self.reserve(1);
        self.tokens.push(token);

        // Suffixes that this token follows for the first time. The longest of all, the whole context, is a leaf
        // whose one transition is the token just pushed.
        let mut at = if end == 0 { StateId::ROOT } else { self.prefixes[end as usize].link() };
        let known = loop {
            let state = &mut self.states[at.index()];
            if let Some(slot) = self.arena.find(&state.edges, token) {
                break Some(slot);
            }
            self.arena.insert(&mut state.edges, token, target);
            state.end = end;
            if at == StateId::ROOT {
                break None;
            }
            at = state.link;
        };
        let link = match known {
            None => StateId::ROOT,
            Some(slot) => {
                let next = self.resolve(self.arena.get(&self.states[at.index()].edges, slot).target);
                let len = self.states[at.index()].len + 1;
                let link = self.branching_state(next, len);
                self.count_known(at, slot, next, link);
                link
            }
        };
        self.prefixes.push(Prefix::leaf(link));
    }

    /// The branching state for the suffixes of `next` that are at most `len` long; they have now occurred again.
    fn branching_state(&mut self, next: StateId, len: u32) -> StateId {
        let new = StateId(u32_from(self.states.len()));
        let state = match next.as_leaf() {
            None if self.states[next.index()].len == len => return next,
            None => {
                let edges = self.arena.duplicate(&self.states[next.index()].edges);
                let whole = &mut self.states[next.index()];
                State { len, link: std::mem::replace(&mut whole.link, new), end: whole.end, edges }
            }
            Some(prefix_len) => {
                let prefix = &mut self.prefixes[prefix_len as usize];
                let link = prefix.link();
                *prefix = if prefix_len == len { Prefix::branching(new) } else { Prefix::leaf(new) };
                let edge =
                    Edge { token: self.tokens[prefix_len as usize], target: StateId::leaf(prefix_len + 1), count: 1 };
                State { len, link, end: prefix_len, edges: EdgeList::single(edge) }
            }
        };
        reserve(&mut self.states, 1);
        self.states.push(state);
        new
    }

    /// Walks the suffixes that the appended token has followed before: their transitions now lead to `link` where
    /// they led to `next`, and the longest of them are counted.
    fn count_known(&mut self, from: StateId, slot: Slot, next: StateId, link: StateId) {
        let token = self.tokens[self.tokens.len() - 1];
        let end = u32_from(self.tokens.len()) - 1;
        let (mut at, mut slot) = (from, slot);
        let mut redirecting = next != link;
        for num_walked in 0.. {
            redirecting = redirecting && {
                let edges = &self.states[at.index()].edges;
                self.resolve(self.arena.get(edges, slot).target) == self.resolve(next)
            };
            let counting = num_walked < MAX_COUNTED_LINKS && at != StateId::ROOT;
            if !redirecting && !counting {
                return;
            }
            let state = &mut self.states[at.index()];
            if redirecting {
                self.arena.set_target(&mut state.edges, slot, link);
            }
            if counting {
                self.arena.count(&mut state.edges, slot);
                state.end = end;
            }
            if at == StateId::ROOT {
                return;
            }
            at = state.link;
            // A suffix of a string that was followed by this token was followed by it too.
            match self.arena.find(&self.states[at.index()].edges, token) {
                Some(found) => slot = found,
                None => return,
            }
        }
    }

    /// A leaf may have become a branching state since an edge was drawn to it.
    fn resolve(&self, state: StateId) -> StateId {
        match state.as_leaf() {
            Some(prefix_len) => self.prefixes[prefix_len as usize].as_branching().unwrap_or(state),
            None => state,
        }
    }

    /// The state of the longest suffix of the context that has occurred before; the root when there is none.
    #[must_use]
    pub fn longest_match(&self) -> StateId {
        if self.tokens.is_empty() { StateId::ROOT } else { self.prefixes[self.tokens.len()].link() }
    }

    /// Length of the state's longest string.
    #[must_use]
    pub fn len_of(&self, state: StateId) -> u32 {
        state.as_leaf().unwrap_or_else(|| self.states[state.index()].len)
    }

    /// The state of the longest proper suffix that occurs in more places; the root's link is the root.
    #[must_use]
    pub fn link(&self, state: StateId) -> StateId {
        match state.as_leaf() {
            Some(prefix_len) => self.prefixes[prefix_len as usize].link(),
            None => self.states[state.index()].link,
        }
    }

    /// What followed the state's strings, or `None` when they stand only at the end of the context.
    #[must_use]
    pub fn continuation(&self, state: StateId) -> Option<Continuation> {
        match state.as_leaf() {
            Some(end) => {
                let token = *self.tokens.get(end as usize)?;
                Some(Continuation { token, count: 1, total: 1, end })
            }
            None => {
                let State { edges, end, .. } = &self.states[state.index()];
                (!edges.is_empty()).then_some(Continuation {
                    token: edges.best.token,
                    count: edges.best.count,
                    total: edges.total,
                    end: *end,
                })
            }
        }
    }

    /// How often a token has followed the state's strings.
    #[must_use]
    pub fn count_of(&self, state: StateId, token: TokenId) -> u32 {
        match state.as_leaf() {
            Some(end) => u32::from(self.tokens.get(end as usize) == Some(&token)),
            None => {
                let edges = &self.states[state.index()].edges;
                self.arena.find(edges, token).map_or(0, |slot| self.arena.get(edges, slot).count)
            }
        }
    }

    /// The state after a token, or `None` when it has never followed.
    #[must_use]
    pub fn follow(&self, state: StateId, token: TokenId) -> Option<StateId> {
        match state.as_leaf() {
            Some(end) => (self.tokens.get(end as usize) == Some(&token)).then(|| self.resolve(StateId::leaf(end + 1))),
            None => {
                let edges = &self.states[state.index()].edges;
                self.arena.find(edges, token).map(|slot| self.resolve(self.arena.get(edges, slot).target))
            }
        }
    }
}
