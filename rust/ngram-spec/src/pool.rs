//! Drafts for the rows of a batch, within a bound on memory.

use std::sync::Arc;

use crate::automaton::{MAX_CONTEXT_LEN, TokenId};
use crate::drafter::{Draft, DraftOptions, Drafter};
use crate::error::Error;
use crate::faults::{Fault, Faults, contain};
use crate::policy::{DraftCost, plan_batch};
use crate::rows::{Entries, Entry, EntryId};

/// Tokens that one call indexes at most for rows that are far behind, over all rows: a few milliseconds where every access
/// misses the cache, and as many as an engine prefills in a step, so a long prompt that joins stalls nobody.
const MAX_INDEXED_PER_CALL: usize = 8_192;
/// A row that is behind by no more than this is always brought up to date.
const MAX_CATCH_UP: usize = 256;
/// Entries without a row that are kept for rows that come back.
const MAX_IDLE_ENTRIES: u64 = 1_024;
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
    /// How many of them it has just been given. With 0, as while a prompt is prefilled, it is indexed and gets no draft.
    pub num_sampled: u32,
    /// Upper limit for this row; 0 indexes the row and drafts nothing.
    pub max_draft_tokens: u32,
}

/// A row in the course of one call.
struct Live<'a> {
    /// None of them where the row has faulted, in this call or too often: an empty row is no work.
    tokens: &'a [TokenId],
    max_draft_tokens: u32,
    entry: Option<EntryId>,
}

/// What a pool has done so far and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Calls of [`DrafterPool::propose`].
    pub num_calls: u64,
    /// Rows, counted per call, that had just been given tokens.
    pub num_sampled_rows: u64,
    /// Tokens that they had been given.
    pub num_sampled_tokens: u64,
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
    /// Rows, counted per call, that got no draft because work on them panicked.
    pub num_row_faults: u64,
    /// Rows, counted per call, that got no draft because they had faulted three times.
    pub num_stood_down_rows: u64,
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
/// A panic in the work on a row costs this row its index and its draft in that call, and the other rows nothing. After
/// three of them the row stands down: any row that begins with the tokens that it had then gets no more drafts, until
/// none has been seen for 1,000 calls.
///
/// ```
/// use ngram_spec::{DraftOptions, DrafterPool, PoolOptions, Row};
///
/// let mut pool = DrafterPool::new(PoolOptions::default(), DraftOptions::default())?;
/// let rows = [&[1, 2, 3, 1, 2][..], &[7, 8, 9][..]];
/// let drafts = pool.propose(&rows.map(|tokens| Row { tokens, num_sampled: 1, max_draft_tokens: 1 }));
/// assert_eq!(drafts[0].token_ids, [3]);
/// assert!(drafts[1].token_ids.is_empty());
/// # Ok::<(), ngram_spec::Error>(())
/// ```
#[derive(Debug)]
pub struct DrafterPool {
    limits: PoolOptions,
    options: Arc<DraftOptions>,
    entries: Entries,
    faults: Faults,
    /// A live row was dropped for want of room, and none that had an index has left since.
    is_full: bool,
    stats: PoolStats,
    /// Those of the last call. As many as the next one has rows serve again, with room for the longest draft each had:
    /// 12 bytes per token, which `max_bytes` does not count.
    drafts: Vec<Draft>,
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
            faults: Faults::default(),
            is_full: false,
            stats: PoolStats::default(),
            drafts: Vec::new(),
        })
    }

    /// What the pool has done so far and what it holds.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// The first fault of a row since this was last asked.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.faults.take()
    }

    /// One draft per row, empty where nothing matches or pays, the row is still being indexed, it has no room, or work on
    /// it panicked.
    pub fn propose(&mut self, rows: &[Row<'_>]) -> &[Draft] {
        self.stats.num_calls += 1;
        let call = self.stats.num_calls;
        let mut live = self.begin(rows);
        self.each(&mut live, |pool, at, row| row.entry = pool.entries.stayed(call, at, row.tokens));
        self.each(&mut live, |pool, _, row| row.entry = row.entry.or_else(|| pool.entries.search(call, row.tokens)));
        self.drop_departed(live.iter().filter(|row| row.entry.is_some()).count());

        let mut budget = MAX_INDEXED_PER_CALL;
        self.each(&mut live, |pool, _, row| {
            row.entry = row.entry.or_else(|| pool.admit(row.tokens));
            row.entry = row.entry.filter(|&id| pool.index(id, row.tokens, &mut budget));
        });
        self.drop_newest();

        let mut drafts = std::mem::take(&mut self.drafts);
        drafts.resize_with(rows.len(), Draft::default);
        drafts.iter_mut().for_each(Draft::clear);
        self.each(&mut live, |pool, at, row| pool.draft(row, &mut drafts[at]));
        // A draft that a fault broke off is none.
        live.iter().zip(&mut drafts).filter(|(row, _)| row.entry.is_none()).for_each(|(_, draft)| draft.clear());
        self.share(&live, &mut drafts);
        self.entries.remember(live.iter().map(|row| row.entry).collect());
        self.drafts = drafts;
        &self.drafts
    }

    /// The rows of this call; those that have faulted too often are left without tokens.
    fn begin<'a>(&mut self, rows: &[Row<'a>]) -> Vec<Live<'a>> {
        let call = self.stats.num_calls;
        self.faults.forget_departed(call);
        let live = rows.iter().map(|&Row { mut tokens, num_sampled, max_draft_tokens }| {
            self.stats.num_sampled_rows += u64::from(num_sampled > 0);
            self.stats.num_sampled_tokens += u64::from(num_sampled);
            if self.faults.has_stood_down(call, tokens) {
                self.stats.num_stood_down_rows += 1;
                tokens = &[];
            }
            let max_draft_tokens = if num_sampled == 0 { 0 } else { max_draft_tokens };
            Live { tokens, max_draft_tokens, entry: None }
        });
        live.collect()
    }

    /// One stage of the work on each row. A panic leaves only the index of its row half changed, which is dropped, and
    /// the acceptance model that all share with what it had learned until then.
    fn each<'a>(&mut self, live: &mut [Live<'a>], mut stage: impl FnMut(&mut Self, usize, &mut Live<'a>)) {
        for (at, row) in live.iter_mut().enumerate() {
            if let Err(fault) = contain(|| stage(self, at, row)) {
                self.stats.num_row_faults += 1;
                self.faults.add(self.stats.num_calls, std::mem::take(&mut row.tokens), fault);
                if let Some(id) = row.entry.take() {
                    self.remove(id);
                }
            }
        }
    }

    /// Takes the oldest entries without a row out while there are too many. They are not visited to be counted: a pass
    /// over all of them would cost more than the rows of a small batch.
    fn drop_departed(&mut self, num_claimed: usize) {
        let num_idle = self.stats.num_entries - num_claimed as u64;
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
        let drafter = Drafter::new(&[], Arc::clone(&self.options)).ok()?;
        self.stats.num_new_rows += 1;
        self.stats.num_entries += 1;
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
    fn draft(&mut self, row: &Live<'_>, draft: &mut Draft) {
        if row.max_draft_tokens == 0 {
            return;
        }
        let room = self.limits.max_context_len.map_or(usize::MAX, |max| max.saturating_sub(row.tokens.len() + 1));
        let limit = row.max_draft_tokens.min(self.options.max_draft_tokens);
        let limit = u32::try_from(room).map_or(limit, |room| limit.min(room));
        let up_to_date = |entry: &&mut Entry| entry.drafter.tokens().len() == row.tokens.len();
        let Some(entry) = row.entry.and_then(|id| self.entries.get_mut(id)).filter(up_to_date) else {
            return;
        };
        match &self.options.draft_cost {
            DraftCost::PerToken(_) => entry.drafter.draft_what_pays(limit, draft),
            DraftCost::Curve(_) => {
                let mut joint = 1.0;
                entry.drafter.draft_while(limit, draft, |probability| {
                    joint *= probability;
                    joint > MIN_SHARED_PROBABILITY
                });
            }
        }
        if let Some(vocab_size) = self.limits.vocab_size {
            let num_valid = draft.token_ids.iter().take_while(|id| id.cast_unsigned() < vocab_size).count();
            entry.drafter.cut(draft, num_valid);
        }
    }

    /// Cuts the drafts of a batch to what pays together, and counts them.
    fn share(&mut self, live: &[Live<'_>], drafts: &mut [Draft]) {
        if let DraftCost::Curve(curve) = &self.options.draft_cost {
            let probabilities: Vec<&[f64]> = drafts.iter().map(|draft| &draft.probabilities[..]).collect();
            let lens = plan_batch(curve, live.len(), &probabilities);
            for ((row, draft), len) in live.iter().zip(&mut *drafts).zip(lens) {
                if let Some(entry) = row.entry.and_then(|id| self.entries.get_mut(id)) {
                    entry.drafter.cut(draft, len);
                }
            }
        }
        for draft in drafts {
            self.stats.num_drafts += u64::from(!draft.token_ids.is_empty());
            self.stats.num_draft_tokens += draft.token_ids.len() as u64;
        }
    }

    #[cfg(test)]
    pub(crate) fn assert_that_stats_add_up(&self) {
        let num_bytes: Vec<u64> = self.entries.iter().map(|(_, entry)| entry.num_bytes as u64).collect();
        assert_eq!((num_bytes.len() as u64, num_bytes.iter().sum()), (self.stats.num_entries, self.stats.num_bytes));
    }
}
