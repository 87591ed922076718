//! The transitions of automaton states: the best one inline, a few in a short list, many in a hash table.
//!
//! All lists and tables are blocks of one arena whose sizes are powers of two, so that a state needs no allocation of
//! its own and a block that is outgrown serves the next state.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::automaton::{StateId, TokenId};

/// One transition: the token that was seen next, where it leads, and how often it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) token: TokenId,
    pub(crate) target: StateId,
    pub(crate) count: u32,
}

/// Token ids are never negative, so a negative one marks a free slot of a hash table.
const VACANT: Edge = Edge { token: -1, target: StateId::ROOT, count: 0 };

/// Up to this many edges besides the best one are scanned; more are hashed.
const MAX_SCANNED: u32 = 8;

/// The edges of one state. `best` has the highest count; among equals it is the one that reached it last.
#[derive(Clone, Debug)]
pub(crate) struct EdgeList {
    pub(crate) best: Edge,
    /// Counts of all edges together.
    pub(crate) total: u32,
    /// Edges besides the best one; they lie in the arena's block.
    num_others: u32,
    block: u32,
}

/// Where an edge lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Best,
    Arena(usize),
}

impl EdgeList {
    pub(crate) const fn empty() -> Self {
        Self { best: VACANT, total: 0, num_others: 0, block: 0 }
    }

    pub(crate) const fn single(edge: Edge) -> Self {
        Self { best: edge, total: edge.count, num_others: 0, block: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.best.token < 0
    }

    const fn is_hashed(&self) -> bool {
        self.num_others > MAX_SCANNED
    }
}

/// Slots that `num_others` edges take: a full list, or a hash table filled to three quarters at most.
const fn capacity(num_others: u32) -> u32 {
    match num_others {
        0 => 0,
        1..=MAX_SCANNED => num_others.next_power_of_two(),
        _ => (num_others + num_others / 3).next_power_of_two(),
    }
}

/// The blocks of all states' edges.
#[derive(Clone, Debug)]
pub(crate) struct EdgeArena {
    /// Odd, and different in every arena, so that no prompt can be written whose tokens all hash alike. The order in a
    /// table shows in no result.
    multiplier: u32,
    slots: Vec<Edge>,
    /// The first free block by the logarithm of its size. A free block holds the next one as the count of its first
    /// slot, so that no list of them lies anywhere else.
    free: [u32; NUM_BLOCK_SIZES],
}

/// Blocks have up to 2**31 slots.
const NUM_BLOCK_SIZES: usize = 32;
/// The block behind the last free one.
const NO_BLOCK: u32 = u32::MAX;

impl Default for EdgeArena {
    fn default() -> Self {
        #[allow(clippy::cast_possible_truncation)] // any 32 bits will do
        let random = RandomState::new().build_hasher().finish() as u32;
        Self { multiplier: random | 1, slots: Vec::new(), free: [NO_BLOCK; NUM_BLOCK_SIZES] }
    }
}

impl EdgeArena {
    /// Bytes held, spare capacity included.
    pub(crate) fn num_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Edge>()
    }

    #[inline]
    pub(crate) fn find(&self, list: &EdgeList, token: TokenId) -> Option<Slot> {
        if list.best.token == token {
            Some(Slot::Best)
        } else if list.num_others == 0 {
            None
        } else {
            self.find_other(list, token)
        }
    }

    fn find_other(&self, list: &EdgeList, token: TokenId) -> Option<Slot> {
        let block = self.block(list);
        if list.is_hashed() {
            let mut at = home(self.multiplier, token, block.len());
            loop {
                match block[at].token {
                    found if found == token => return Some(Slot::Arena(list.block as usize + at)),
                    found if found < 0 => return None,
                    _ => at = (at + 1) & (block.len() - 1),
                }
            }
        }
        let at = block[..list.num_others as usize].iter().position(|edge| edge.token == token)?;
        Some(Slot::Arena(list.block as usize + at))
    }

    pub(crate) fn get<'a>(&'a self, list: &'a EdgeList, slot: Slot) -> &'a Edge {
        match slot {
            Slot::Best => &list.best,
            Slot::Arena(at) => &self.slots[at],
        }
    }

    pub(crate) fn set_target(&mut self, list: &mut EdgeList, slot: Slot, target: StateId) {
        match slot {
            Slot::Best => list.best.target = target,
            Slot::Arena(at) => self.slots[at].target = target,
        }
    }

    /// Adds an edge for a token that the list does not have yet, counted once.
    pub(crate) fn insert(&mut self, list: &mut EdgeList, token: TokenId, target: StateId) {
        let edge = Edge { token, target, count: 1 };
        list.total = list.total.saturating_add(1);
        if list.is_empty() {
            list.best = edge;
            return;
        }
        let other = if edge.count >= list.best.count { std::mem::replace(&mut list.best, edge) } else { edge };
        let (old, new) = (capacity(list.num_others), capacity(list.num_others + 1));
        if old != new {
            self.move_to_new_block(list, new);
        }
        list.num_others += 1;
        self.put(list, other);
    }

    /// Counts an edge once more, and makes it the best one when no other has a higher count.
    pub(crate) fn count(&mut self, list: &mut EdgeList, slot: Slot) {
        list.total = list.total.saturating_add(1);
        let Slot::Arena(at) = slot else {
            list.best.count = list.best.count.saturating_add(1);
            return;
        };
        let edge = &mut self.slots[at];
        edge.count = edge.count.saturating_add(1);
        if edge.count < list.best.count {
            return;
        }
        if list.is_hashed() {
            let best = self.take_from_table(list, at);
            let other = std::mem::replace(&mut list.best, best);
            self.put(list, other);
        } else {
            std::mem::swap(edge, &mut list.best);
        }
    }

    /// A list of its own with the same edges and counts.
    pub(crate) fn duplicate(&mut self, list: &EdgeList) -> EdgeList {
        let mut copy = list.clone();
        let size = capacity(list.num_others);
        if size > 0 {
            copy.block = self.allocate(size);
            let from = list.block as usize;
            self.slots.copy_within(from..from + size as usize, copy.block as usize);
        }
        copy
    }

    fn block(&self, list: &EdgeList) -> &[Edge] {
        &self.slots[list.block as usize..][..capacity(list.num_others) as usize]
    }

    /// Gives the list a block of `size` slots that holds its edges and has room for one more.
    fn move_to_new_block(&mut self, list: &mut EdgeList, size: u32) {
        let old_size = capacity(list.num_others);
        let block = self.allocate(size);
        let (from, to) = (list.block as usize, block as usize);
        let hashed = list.num_others + 1 > MAX_SCANNED;
        for at in from..from + old_size as usize {
            let edge = self.slots[at];
            if hashed && edge.token >= 0 {
                place(self.multiplier, &mut self.slots[to..to + size as usize], edge);
            } else if !hashed {
                self.slots[to + at - from] = edge;
            }
        }
        if old_size > 0 {
            self.release(list.block, old_size);
        }
        list.block = block;
    }

    /// Writes an edge into the block, whose `num_others` already counts it.
    fn put(&mut self, list: &EdgeList, edge: Edge) {
        let from = list.block as usize;
        if list.is_hashed() {
            place(self.multiplier, &mut self.slots[from..from + capacity(list.num_others) as usize], edge);
        } else {
            self.slots[from + list.num_others as usize - 1] = edge;
        }
    }

    /// Takes an edge out of a hash table and closes the gap (linear probing leaves no tombstones).
    fn take_from_table(&mut self, list: &EdgeList, at: usize) -> Edge {
        let multiplier = self.multiplier;
        let from = list.block as usize;
        let table = &mut self.slots[from..from + capacity(list.num_others) as usize];
        let mask = table.len() - 1;
        let mut gap = at - from;
        let taken = std::mem::replace(&mut table[gap], VACANT);
        let mut next = (gap + 1) & mask;
        while table[next].token >= 0 {
            let wanted = home(multiplier, table[next].token, table.len());
            // The edge may move back only as far as its own home.
            if (next.wrapping_sub(wanted) & mask) >= (next.wrapping_sub(gap) & mask) {
                table.swap(gap, next);
                gap = next;
            }
            next = (next + 1) & mask;
        }
        taken
    }

    fn allocate(&mut self, size: u32) -> u32 {
        let class = size.trailing_zeros() as usize;
        let Some(larger) = (class..NUM_BLOCK_SIZES).find(|&larger| self.free[larger] != NO_BLOCK) else {
            let block = self.slots.len();
            reserve(&mut self.slots, size as usize);
            self.slots.resize(block + size as usize, VACANT);
            return u32_from(block);
        };
        let block = self.free[larger];
        self.free[larger] = self.slots[block as usize].count;
        // The rest of a larger block goes back in halves.
        for half in class..larger {
            self.release(block + (1 << half), 1 << half);
        }
        self.slots[block as usize..][..size as usize].fill(VACANT);
        block
    }

    fn release(&mut self, block: u32, size: u32) {
        let first = &mut self.free[size.trailing_zeros() as usize];
        self.slots[block as usize].count = std::mem::replace(first, block);
    }
}

fn place(multiplier: u32, table: &mut [Edge], edge: Edge) {
    let mut at = home(multiplier, edge.token, table.len());
    while table[at].token >= 0 {
        at = (at + 1) & (table.len() - 1);
    }
    table[at] = edge;
}

/// First slot to try for a token: multiplicative hashing, since ids that stand close together are common.
fn home(multiplier: u32, token: TokenId, table_len: usize) -> usize {
    let hash = token.cast_unsigned().wrapping_mul(multiplier);
    (hash >> (32 - table_len.trailing_zeros())) as usize
}

/// Makes room for `additional` items, growing by a quarter: doubling would waste more than the index itself needs.
pub(crate) fn reserve<T>(items: &mut Vec<T>, additional: usize) {
    if items.capacity() - items.len() < additional {
        items.reserve_exact(additional.max(items.len() / 4).max(16));
    }
}

/// Every length here is bounded by [`crate::automaton::MAX_CONTEXT_LEN`], which leaves room in 32 bits.
#[allow(clippy::cast_possible_truncation)]
pub(crate) const fn u32_from(len: usize) -> u32 {
    debug_assert!(len <= u32::MAX as usize);
    len as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// How many blocks, free or of a list, each slot lies in.
    fn owners_of_slots(arena: &EdgeArena, lists: &[EdgeList]) -> Vec<u32> {
        let mut owners = vec![0; arena.slots.len()];
        let mut add =
            |block: u32, size: u32| owners[block as usize..][..size as usize].iter_mut().for_each(|n| *n += 1);
        for list in lists.iter().filter(|list| list.num_others > 0) {
            add(list.block, capacity(list.num_others));
        }
        for (class, &first) in arena.free.iter().enumerate() {
            let listed = |block: u32| (block != NO_BLOCK).then_some(block);
            for block in std::iter::successors(listed(first), |&block| listed(arena.slots[block as usize].count)) {
                add(block, 1 << class);
            }
        }
        owners
    }

    proptest! {
        #[test]
        fn lists_and_tables_agree_with_a_hash_map(
            tokens in prop::collection::vec((0..3usize, 0..200i32), 0..1_500),
        ) {
            let mut arena = EdgeArena::default();
            let mut lists = [const { EdgeList::empty() }; 3];
            let mut twins: [HashMap<TokenId, u32>; 3] = Default::default();
            for (at, token) in tokens {
                let list = &mut lists[at];
                match arena.find(list, token) {
                    Some(slot) => arena.count(list, slot),
                    None => arena.insert(list, token, StateId::ROOT),
                }
                *twins[at].entry(token).or_insert(0) += 1;
                let twin = &twins[at];
                prop_assert_eq!(list.total, twin.values().sum::<u32>());
                prop_assert_eq!(list.best.count, *twin.values().max().unwrap_or(&0));
                if token % 50 == 0 {
                    let next = (at + 1) % 3;
                    let (block, size) = (lists[next].block, capacity(lists[next].num_others));
                    if size > 0 {
                        arena.release(block, size);
                    }
                    lists[next] = arena.duplicate(&lists[at]);
                    twins[next] = twins[at].clone();
                }
            }
            prop_assert_eq!(owners_of_slots(&arena, &lists), vec![1; arena.slots.len()]);
            for (list, twin) in lists.iter().zip(&twins) {
                for token in 0..200 {
                    let count = arena.find(list, token).map(|slot| arena.get(list, slot).count);
                    prop_assert_eq!(count, twin.get(&token).copied());
                }
            }
        }
    }
}
