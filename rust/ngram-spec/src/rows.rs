//! Recognises the rows of a batch by their tokens.
//!
//! Engines hand over a buffer of rows without identity: rows move, are swapped, replaced by another request, vanish and
//! come back elsewhere. So the index of a row is valid if and only if the tokens it was built from are what the row
//! begins with. Where a row was in the last call is a hint for the search, never evidence.

use crate::automaton::TokenId;
use crate::drafter::Drafter;
use crate::edges::u32_from;

/// Up to this length the whole row is compared in every call.
const MAX_EXACT_LEN: usize = 16_384;
/// Of a longer row that merely grew, the tail and one slice of this length are compared per call, and as many tokens as
/// there are samples all over the row: another request's text differs nearly everywhere and is noticed at once.
const SLICE_LEN: usize = 2_048;
const TAIL_LEN: usize = 64;
const NUM_SAMPLES: usize = 32;
/// A row that grew by more than this in one call did not just take a step: drafts are never longer than 128.
const MAX_STEP_LEN: usize = 129;

/// A place in [`Entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId(u32);

impl EntryId {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The index of one request, whichever row it is in.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) drafter: Drafter,
    /// Length of the row when it was last seen; the drafter may still be behind.
    pub(crate) row_len: usize,
    /// Number of the call in which it was last seen.
    pub(crate) last_call: u64,
    /// Rises from entry to entry, so the highest is the newest.
    pub(crate) serial: u64,
    /// Bytes that the pool counts for it.
    pub(crate) num_bytes: usize,
    /// Start of the slice that is compared next, for long rows.
    next_slice: usize,
}

impl Entry {
    /// Whether the row begins with the tokens that this index was built from. `stayed`: the row is where it was.
    fn fits(&mut self, row: &[TokenId], stayed: bool) -> bool {
        #[cfg(test)]
        row.iter().for_each(|&token| crate::faults::tests::plant(crate::faults::tests::FAULTY_TO_COMPARE, token));
        let known = self.drafter.tokens();
        let len = known.len();
        if len > row.len() {
            return false;
        }
        let tail = len.saturating_sub(TAIL_LEN);
        if known[tail..] != row[tail..len] {
            return false;
        }
        if len <= MAX_EXACT_LEN || !stayed || !self.continues(row.len()) {
            return known[..tail] == row[..tail];
        }
        let start = if self.next_slice < tail { self.next_slice } else { 0 };
        let end = (start + SLICE_LEN).min(tail);
        self.next_slice = end;
        let stride = tail / NUM_SAMPLES;
        let mut samples = (start % stride..tail).step_by(stride);
        known[start..end] == row[start..end] && samples.all(|at| known[at] == row[at])
    }

    /// Whether a row of this length can be the same row one step later.
    fn continues(&self, row_len: usize) -> bool {
        (self.row_len..=self.row_len + MAX_STEP_LEN).contains(&row_len)
    }
}

/// What the search compares first, kept together so that a scan stays in the cache.
#[derive(Clone, Copy, Debug)]
struct Key {
    len: u32,
    last_token: TokenId,
}

/// A key that fits no row.
const VACANT: Key = Key { len: 0, last_token: -1 };

/// The indexes of all requests that were seen lately, and which row each was in.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    entries: Vec<Option<Entry>>,
    keys: Vec<Key>,
    vacant: Vec<EntryId>,
    /// Which entry each row had in the last call.
    hints: Vec<Option<EntryId>>,
    num_serials: u64,
}

impl Entries {
    /// Claims the entry that was in this place in the last call, where the row goes on with it. All rows that stayed come
    /// before those that are searched for, and no entry serves two rows.
    pub(crate) fn stayed(&mut self, call: u64, at: usize, row: &[TokenId]) -> Option<EntryId> {
        let id = self.hints.get(at).copied().flatten()?;
        let entry = self.entries[id.index()].as_mut()?;
        // After a jump another entry may know more of the row, so that one is searched for.
        (entry.continues(row.len()) && entry.fits(row, true)).then(|| self.claim(id, call))
    }

    /// Claims the longest unclaimed entry that the row begins with. A row without one is new.
    pub(crate) fn search(&mut self, call: u64, row: &[TokenId]) -> Option<EntryId> {
        let mut candidates: Vec<EntryId> = (0..u32_from(self.keys.len()))
            .filter(|&at| {
                let Key { len, last_token } = self.keys[at as usize];
                len > 0 && row.get(len as usize - 1) == Some(&last_token)
            })
            .map(EntryId)
            .collect();
        candidates.sort_by_key(|id| std::cmp::Reverse(self.keys[id.index()].len));
        let found = candidates.into_iter().find(|id| {
            self.entries[id.index()].as_mut().is_some_and(|entry| entry.last_call != call && entry.fits(row, false))
        });
        found.map(|id| self.claim(id, call))
    }

    fn claim(&mut self, id: EntryId, call: u64) -> EntryId {
        if let Some(entry) = &mut self.entries[id.index()] {
            // A request that was away, or another one that begins like it: what it goes on with judges no draft.
            if entry.last_call + 1 != call {
                entry.drafter.forget_draft();
            }
            entry.last_call = call;
        }
        id
    }

    /// Adds an entry for a new row.
    pub(crate) fn add(&mut self, call: u64, drafter: Drafter) -> EntryId {
        self.num_serials += 1;
        let entry =
            Entry { drafter, row_len: 0, last_call: call, serial: self.num_serials, num_bytes: 0, next_slice: 0 };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.keys.push(VACANT);
            EntryId(u32_from(self.entries.len() - 1))
        });
        self.entries[id.index()] = Some(entry);
        id
    }

    pub(crate) fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry> {
        self.entries[id.index()].as_mut()
    }

    pub(crate) fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let entry = self.entries[id.index()].take()?;
        self.keys[id.index()] = VACANT;
        self.vacant.push(id);
        Some(entry)
    }

    /// Keeps where each row was and what its entry now knows, for the next call.
    pub(crate) fn remember(&mut self, found: Vec<Option<EntryId>>) {
        for &id in found.iter().flatten() {
            if let Some(entry) = &self.entries[id.index()] {
                let known = entry.drafter.tokens();
                self.keys[id.index()] =
                    known.last().map_or(VACANT, |&last_token| Key { len: u32_from(known.len()), last_token });
            }
        }
        self.hints = found;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        (0..).map(EntryId).zip(&self.entries).filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }
}
