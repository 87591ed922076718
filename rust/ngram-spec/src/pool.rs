//! Drafts for the rows of a batch, within a bound on memory.

use std::sync::Arc;

use crate::automaton::{MAX_CONTEXT_LEN, TokenId};
use crate::drafter::{Draft, DraftOptions, Drafter};
use crate::error::Error;
use crate::policy::{DraftCost, plan_batch};
use crate::rows::{Entries, Entry, EntryId};

/// Tokens that one call indexes at most for rows that are far behind, over all rows: a few milliseconds where every access
/// misses the cache, and as many as an engine prefills in a step, so a long prompt that joins stalls nobody.
const MAX_INDEXED_PER_CALL: usize = 8_192;
/// A row that is behind by no more than this is always brought up to date.
const MAX_CATCH_UP: usize = 256;
/// Entries without a row that are kept for rows that come back.
const MAX_IDLE_ENTRIES: usize = 1_024;
/// Tokens that are accepted less often than this do not take part when a batch shares out what pays.
const MIN_SHARED_PROBABILITY: f64 = 0.01;
const MAX_BYTES: usize = 1 << 48;
/// Bytes that are set aside per token before a row is indexed. Text needs fewer; what it really took is counted after.
pub const RESERVED_BYTES_PER_TOKEN: usize = 64;

/// Limits of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bound on the bytes that all rows' indexes hold.
    pub max_bytes: usize,
    /// The engine's limit on prompt and response together; drafts leave room for the target model's own token.
    pub max_context_len: Option<usize>,
    /// Ids from this one on are never drafted.
    pub vocab_size: Option<u32>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { max_bytes: 1 << 30, max_context_len: None, vocab_size: None }
    }
}

/// One row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Prompt and response so far.
    pub tokens: &'a [TokenId],
    /// Upper limit for this row; 0 indexes the row and drafts nothing.
    pub max_draft_tokens: u32,
}

/// What a pool has done so far and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Calls of [`DrafterPool::propose`].
    pub num_calls: u64,
    /// Rows in all calls that asked for a draft.
    pub num_rows: u64,
    /// Rows that got a draft.
    pub num_drafts: u64,
    /// Tokens of all drafts.
    pub num_draft_tokens: u64,
    /// Tokens that were indexed.
    pub num_indexed_tokens: u64,
    /// Rows that were new or no longer what they had been.
    pub num_new_rows: u64,
    /// Indexes that were dropped to stay within the bounds.
    pub num_evictions: u64,
    /// Rows, counted per call, that had no room within `max_bytes`.
    pub num_unindexed_rows: u64,
    /// Rows, counted per call, that held a negative id or were too long.
    pub num_invalid_rows: u64,
    /// Indexes held.
    pub num_entries: u64,
    /// Bytes that the indexes hold, counted or set aside.
    pub num_bytes: u64,
}

/// Drafts for a batch whose rows have no identity.
///
/// With the same tokens a row gets the same draft as a fresh [`Drafter`] would give, or none while its index is being
/// built or has no room.
///
/// ```
/// use ngram_spec::{DraftOptions, DrafterPool, PoolOptions, Row};
///
/// let mut pool = DrafterPool::new(PoolOptions::default(), DraftOptions::default())?;
/// let rows = [&[1, 2, 3, 1, 2][..], &[7, 8, 9][..]];
/// let drafts = pool.propose(&rows.map(|tokens| Row { tokens, max_draft_tokens: 1 }));
/// assert_eq!(drafts, [vec![3], vec![]]);
/// # Ok::<(), ngram_spec::Error>(())
/// ```
#[derive(Debug)]
pub struct DrafterPool {
    limits: PoolOptions,
    options: Arc<DraftOptions>,
    entries: Entries,
    /// A live row was dropped for want of room, and none that had an index has left since.
    is_full: bool,
    stats: PoolStats,
}

impl DrafterPool {
    /// An empty pool.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when an option is outside its range, or `max_bytes` cannot hold one row.
    pub fn new(limits: PoolOptions, options: DraftOptions) -> Result<Self, Error> {
        options.check()?;
        let longest = limits.max_context_len.unwrap_or(1_024);
        if longest == 0 || longest > MAX_CONTEXT_LEN {
            return Err(Error::option("max_context_len", "from 1 to 268435455", longest));
        }
        if limits.vocab_size == Some(0) {
            return Err(Error::option("vocab_size", "at least 1", 0));
        }
        if limits.max_bytes > MAX_BYTES {
            return Err(Error::option("max_bytes", "at most 2**48, which no machine has", limits.max_bytes));
        }
        if limits.max_bytes / RESERVED_BYTES_PER_TOKEN < longest {
            let rule = "at least 64 bytes for each token of max_context_len (65536 where that is not given)";
            return Err(Error::option("max_bytes", rule, limits.max_bytes));
        }
        Ok(Self {
            limits,
            options: Arc::new(options),
            entries: Entries::default(),
            is_full: false,
            stats: PoolStats::default(),
        })
    }

    /// What the pool has done so far and what it holds.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// One draft per row, empty where nothing matches or pays, the row is still being indexed, or it has no room.
    pub fn propose(&mut self, rows: &[Row<'_>]) -> Vec<Vec<TokenId>> {
        self.stats.num_calls += 1;
        let tokens: Vec<&[TokenId]> = rows.iter().map(|row| row.tokens).collect();
        let mut found = self.entries.recognise(self.stats.num_calls, &tokens);
        self.drop_departed();

        let mut budget = MAX_INDEXED_PER_CALL;
        for (entry, tokens) in found.iter_mut().zip(&tokens) {
            if entry.is_none() {
                *entry = self.admit(tokens);
            }
            *entry = entry.filter(|&id| self.index(id, tokens, &mut budget));
        }
        self.drop_newest();

        let mut drafts: Vec<Draft> = rows.iter().zip(&found).map(|(row, entry)| self.draft(row, *entry)).collect();
        self.share(&mut drafts, &found);
        self.entries.remember(found);
        drafts.into_iter().map(|draft| draft.token_ids).collect()
    }

    /// Takes the oldest entries without a row out while there are too many.
    fn drop_departed(&mut self) {
        let call = self.stats.num_calls;
        let num_idle = self.entries.iter().filter(|(_, entry)| entry.last_call != call).count();
        // A row that leaves makes room for one that had none.
        self.is_full &= num_idle == 0;
        for _ in MAX_IDLE_ENTRIES..num_idle {
            self.evict_oldest_idle();
        }
    }

    fn evict_oldest_idle(&mut self) -> bool {
        let call = self.stats.num_calls;
        let idle = self.entries.iter().filter(|(_, entry)| entry.last_call != call);
        let oldest = idle.min_by_key(|(_, entry)| (entry.last_call, entry.serial)).map(|(id, _)| id);
        oldest.is_some_and(|id| {
            self.evict(id);
            true
        })
    }

    fn evict(&mut self, id: EntryId) {
        self.remove(id);
        self.stats.num_evictions += 1;
    }

    fn remove(&mut self, id: EntryId) {
        if let Some(entry) = self.entries.remove(id) {
            self.stats.num_bytes -= entry.num_bytes as u64;
            self.stats.num_entries -= 1;
        }
    }

    /// An entry for a new row, if it has room beside the rows that were there before.
    fn admit(&mut self, tokens: &[TokenId]) -> Option<EntryId> {
        if tokens.is_empty() {
            return None;
        }
        if tokens.len() > MAX_CONTEXT_LEN || tokens.iter().any(|&token| token < 0) {
            self.stats.num_invalid_rows += 1;
            return None;
        }
        let needed = (tokens.len() * RESERVED_BYTES_PER_TOKEN) as u64;
        // What was dropped for want of room needs more of it to come back, so that nothing is built only to be dropped.
        let max_bytes = self.limits.max_bytes - if self.is_full { self.limits.max_bytes / 8 } else { 0 };
        while self.stats.num_bytes + needed > max_bytes as u64 {
            if !self.evict_oldest_idle() {
                self.stats.num_unindexed_rows += 1;
                return None;
            }
        }
        self.stats.num_new_rows += 1;
        self.stats.num_entries += 1;
        let drafter = Drafter::new(&[], Arc::clone(&self.options)).ok()?;
        Some(self.entries.add(self.stats.num_calls, drafter))
    }

    /// Brings an entry nearer to its row, within the budget. False when the row turned out to be invalid.
    fn index(&mut self, id: EntryId, tokens: &[TokenId], budget: &mut usize) -> bool {
        let Some(entry) = self.entries.get_mut(id) else {
            return false;
        };
        let known_len = entry.drafter.tokens().len();
        let mut new = &tokens[known_len..];
        if new.len() > MAX_CATCH_UP {
            new = &new[..new.len().min(*budget)];
            *budget -= new.len();
        }
        if entry.drafter.extend(new).is_err() {
            self.stats.num_invalid_rows += 1;
            self.remove(id);
            return false;
        }
        entry.row_len = tokens.len();
        let num_bytes = entry.drafter.num_bytes().max(tokens.len() * RESERVED_BYTES_PER_TOKEN);
        self.stats.num_bytes += num_bytes as u64;
        self.stats.num_bytes -= entry.num_bytes as u64;
        entry.num_bytes = num_bytes;
        self.stats.num_indexed_tokens += new.len() as u64;
        true
    }

    /// Drops the newest entries while the rows have outgrown the bound.
    fn drop_newest(&mut self) {
        while self.stats.num_bytes > self.limits.max_bytes as u64 {
            if self.evict_oldest_idle() {
                continue;
            }
            let newest = self.entries.iter().max_by_key(|(_, entry)| entry.serial).map(|(id, _)| id);
            let Some(id) = newest else { return };
            self.evict(id);
            self.is_full = true;
        }
    }

    /// The draft of one row: by itself where a token costs the same in every batch, and otherwise as long as it may
    /// get when the batch shares out what pays.
    fn draft(&mut self, row: &Row<'_>, entry: Option<EntryId>) -> Draft {
        if row.max_draft_tokens == 0 {
            return Draft::default();
        }
        self.stats.num_rows += 1;
        let room = self.limits.max_context_len.map_or(usize::MAX, |max| max.saturating_sub(row.tokens.len() + 1));
        let limit = row.max_draft_tokens.min(self.options.max_draft_tokens);
        let limit = u32::try_from(room).map_or(limit, |room| limit.min(room));
        let up_to_date = |entry: &&mut Entry| entry.drafter.tokens().len() == row.tokens.len();
        let Some(entry) = entry.and_then(|id| self.entries.get_mut(id)).filter(up_to_date) else {
            return Draft::default();
        };
        let mut draft = match &self.options.draft_cost {
            DraftCost::PerToken(_) => entry.drafter.draft(limit),
            DraftCost::Curve(_) => {
                let mut joint = 1.0;
                entry.drafter.draft_while(limit, |probability| {
                    joint *= probability;
                    joint > MIN_SHARED_PROBABILITY
                })
            }
        };
        if let Some(vocab_size) = self.limits.vocab_size {
            let num_valid = draft.token_ids.iter().take_while(|id| id.cast_unsigned() < vocab_size).count();
            entry.drafter.cut(&mut draft, num_valid);
        }
        draft
    }

    /// Cuts the drafts of a batch to what pays together, and counts them.
    fn share(&mut self, drafts: &mut [Draft], found: &[Option<EntryId>]) {
        if let DraftCost::Curve(curve) = &self.options.draft_cost {
            let probabilities: Vec<&[f64]> = drafts.iter().map(|draft| &draft.probabilities[..]).collect();
            let lens = plan_batch(curve, drafts.len(), &probabilities);
            for ((draft, len), entry) in drafts.iter_mut().zip(lens).zip(found) {
                if let Some(entry) = entry.and_then(|id| self.entries.get_mut(id)) {
                    entry.drafter.cut(draft, len);
                }
            }
        }
        for draft in drafts {
            self.stats.num_drafts += u64::from(!draft.token_ids.is_empty());
            self.stats.num_draft_tokens += draft.token_ids.len() as u64;
        }
    }
}
