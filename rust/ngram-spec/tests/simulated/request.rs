//! A request, and what a fresh drafter would draft for it.

use ngram_spec::{DraftCost, DraftOptions, Drafter, TokenId};

use super::text::{NUM_SHARED, Text};
use super::{MAX_DRAFT_TOKENS, MAX_MODEL_LEN};

/// Learning off, one fixed draft cost.
pub(crate) fn options() -> DraftOptions {
    DraftOptions {
        max_draft_tokens: u32::try_from(MAX_DRAFT_TOKENS).unwrap(),
        draft_cost: DraftCost::per_token(0.1).unwrap(),
        ..DraftOptions::default()
    }
}

/// A request, waiting or in a row.
#[derive(Debug)]
pub(crate) struct Request {
    /// Holds the context, and drafts as a fresh drafter would.
    pub(super) twin: Drafter,
    pub(super) text: Text,
    /// Tokens of requests that are gone which stand in this one too.
    pub(super) inherited: Vec<TokenId>,
    pub(super) num_prefilled: usize,
    /// Tokens to prefill before any is sampled.
    pub(super) prefill_len: usize,
    /// Sampled tokens still to come.
    pub(super) num_left: usize,
    /// What the last call drafted.
    pub(super) draft: Vec<TokenId>,
    pub(super) num_sampled: usize,
    /// A call has seen it since it last shrank or jumped.
    pub(super) is_settled: bool,
    /// The token behind its end before it shrank; it goes on differently.
    pub(super) cut_token: Option<TokenId>,
    pub(super) last_row: usize,
}

impl Request {
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.twin.tokens()
    }

    /// Whether this token has ever been part of this request.
    pub(crate) fn knows(&self, token: TokenId) -> bool {
        token < NUM_SHARED || self.text.owns(token) || self.inherited.binary_search(&token).is_ok()
    }

    /// What a fresh drafter would draft.
    pub(crate) fn expected(&mut self, max_draft_tokens: usize) -> Vec<TokenId> {
        if self.num_sampled == 0 {
            return Vec::new(); // still being prefilled
        }
        self.twin.draft(draft_limit(max_draft_tokens, self.tokens().len())).token_ids
    }
}

pub(crate) fn draft_limit(max_draft_tokens: usize, len: usize) -> u32 {
    u32::try_from(max_draft_tokens.min((MAX_MODEL_LEN - len).saturating_sub(1))).unwrap()
}

/// The tokens that came from another request, sorted.
pub(super) fn foreign(tokens: &[TokenId], text: &Text) -> Vec<TokenId> {
    let mut foreign: Vec<_> =
        tokens.iter().copied().filter(|&token| token >= NUM_SHARED && !text.owns(token)).collect();
    foreign.sort_unstable();
    foreign.dedup();
    foreign
}
