//! Contains a panic in the row where it happened, and remembers rows that fault again and again.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::automaton::TokenId;

/// A row that has faulted so often stands down: it gets no drafts and no work.
const MAX_FAULTS_PER_ROW: u32 = 3;
/// Faulty rows that are remembered; the one that faulted first makes room for another.
const MAX_FAULTY_ROWS: usize = 16;
/// A faulty row that was away for so many calls is forgotten.
const NUM_CALLS_AWAY: u64 = 1_000;
/// A message may print whole arrays.
const MAX_MESSAGE_LEN: usize = 200;

/// A panic that was contained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What the panic said, cut to 200 characters. Numbers in it may be token ids.
    pub message: String,
    /// File, line and column.
    pub place: String,
}

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Runs `work`; a panic in it becomes a [`Fault`], and nothing is printed.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Fault> {
    // Only a hook is told the place, and the one that stands by default prints a message that may hold token ids. Any
    // other panic of the process is left to the hook that was there before.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if IS_CONTAINED.get() {
                PLACE.set(panic.location().map(ToString::to_string));
            } else {
                before(panic);
            }
        }));
    });
    IS_CONTAINED.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(false);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        Fault { message: text.chars().take(MAX_MESSAGE_LEN).collect(), place: PLACE.take().unwrap_or_default() }
    })
}

/// Rows have no identity, so a faulty one is whichever row begins with the tokens that it had at its first fault. A row
/// that was preempted and a request that is sent again are known by them, and every rank knows the same.
#[derive(Debug)]
struct FaultyRow {
    tokens: Vec<TokenId>,
    num_faults: u32,
    last_call: u64,
}

impl FaultyRow {
    fn is(&self, row: &[TokenId]) -> bool {
        // The last token tells most other rows apart, also those that begin alike.
        row.get(self.tokens.len() - 1) == self.tokens.last() && row.starts_with(&self.tokens)
    }
}

/// The rows that faulted lately, and why.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rows: Vec<FaultyRow>,
    untold: Option<Fault>,
}

impl Faults {
    /// Forgets rows that did not come back.
    pub(crate) fn forget_departed(&mut self, call: u64) {
        self.rows.retain(|faulty| faulty.last_call + NUM_CALLS_AWAY >= call);
    }

    /// Whether a row of this call has faulted too often.
    pub(crate) fn has_stood_down(&mut self, call: u64, row: &[TokenId]) -> bool {
        let mut has_stood_down = false;
        for faulty in self.rows.iter_mut().filter(|faulty| faulty.is(row)) {
            faulty.last_call = call;
            has_stood_down |= faulty.num_faults >= MAX_FAULTS_PER_ROW;
        }
        has_stood_down
    }

    /// Counts a fault against a row, which is not empty: an empty row is no work.
    pub(crate) fn add(&mut self, call: u64, row: &[TokenId], fault: Fault) {
        self.untold.get_or_insert(fault);
        if let Some(faulty) = self.rows.iter_mut().find(|faulty| faulty.is(row)) {
            faulty.num_faults += 1;
            return;
        }
        if self.rows.len() == MAX_FAULTY_ROWS {
            self.rows.remove(0);
        }
        self.rows.push(FaultyRow { tokens: row.to_vec(), num_faults: 1, last_call: call });
    }

    /// The first fault since this was last asked.
    pub(crate) fn take(&mut self) -> Option<Fault> {
        self.untold.take()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        AcceptanceModel, CostCurve, DraftCost, DraftOptions, Drafter, DrafterPool, PoolOptions, PoolStats, Row,
    };

    pub(crate) const FAULTY_TO_COMPARE: TokenId = 901;
    pub(crate) const FAULTY_TO_INDEX: TokenId = 902;
    pub(crate) const FAULTY_TO_DRAFT: TokenId = 903;

    /// Where the tests of this crate call it, work on a token faults.
    pub(crate) fn plant(faulty: TokenId, token: TokenId) {
        assert!(token != faulty, "planted: token {token}");
    }

    fn options() -> DraftOptions {
        DraftOptions { draft_cost: DraftCost::per_token(0.01).unwrap(), ..DraftOptions::default() }
    }

    fn pool(options: DraftOptions) -> DrafterPool {
        DrafterPool::new(PoolOptions::default(), options).unwrap()
    }

    fn propose(pool: &mut DrafterPool, rows: &[&[TokenId]]) -> Vec<Vec<TokenId>> {
        let rows: Vec<_> = rows.iter().map(|tokens| Row { tokens, num_sampled: 1, max_draft_tokens: 6 }).collect();
        pool.propose(&rows).iter().map(|draft| draft.token_ids.clone()).collect()
    }

    fn fresh_draft(tokens: &[TokenId]) -> Vec<TokenId> {
        Drafter::new(tokens, options()).unwrap().draft(6).token_ids
    }

    fn faults_of(stats: PoolStats) -> (u64, u64) {
        (stats.num_row_faults, stats.num_stood_down_rows)
    }

    const GOOD: &[TokenId] = &[1, 2, 3, 4, 1, 2];

    #[test]
    fn a_panic_while_comparing_indexing_or_drafting_costs_its_row_one_draft_and_the_others_nothing() {
        for faulty in [FAULTY_TO_COMPARE, FAULTY_TO_INDEX, FAULTY_TO_DRAFT] {
            let mut pool = pool(options());
            let row = [5, 6, faulty, 7, 5, 6];
            // A first step, so that there is something to compare with.
            assert_eq!(propose(&mut pool, &[GOOD, &row[..2], GOOD])[0], [3, 4, 1, 2, 3, 4]);
            assert_eq!(propose(&mut pool, &[GOOD, &row, GOOD]), [fresh_draft(GOOD), vec![], fresh_draft(GOOD)]);
            assert_eq!(faults_of(pool.stats()), (1, 0));
            // In the same place another request is drafted for as ever.
            assert_eq!(propose(&mut pool, &[GOOD, &[7, 8, 7], GOOD])[1], fresh_draft(&[7, 8, 7]));
        }
    }

    #[test]
    fn a_row_that_faulted_is_indexed_anew_in_the_next_call() {
        let mut pool = pool(options());
        let row = [5, 6, FAULTY_TO_DRAFT, 7, 5, 6, 7, 6, 7];
        assert_eq!(propose(&mut pool, &[&row[..6]]), [[]]);
        assert_eq!(pool.stats().num_entries, 0);
        let indexed = pool.stats().num_indexed_tokens;
        assert_eq!(propose(&mut pool, &[&row]), [fresh_draft(&row)]); // the likeliest draft is another one now
        assert_eq!(pool.stats().num_indexed_tokens - indexed, 9);
        assert_eq!((faults_of(pool.stats()), pool.stats().num_entries), ((1, 0), 1));
    }

    #[test]
    fn after_three_faults_a_row_stands_down_wherever_it_goes_until_it_is_long_gone() {
        let mut pool = pool(options());
        let mut row = vec![5, FAULTY_TO_INDEX, 6];
        for _ in 0..3 {
            assert_eq!(propose(&mut pool, &[GOOD, &row]), [fresh_draft(GOOD), vec![]]);
            row.push(6);
        }
        assert_eq!(faults_of(pool.stats()), (3, 0));
        let num_new_rows = pool.stats().num_new_rows;
        for _ in 0..5 {
            assert_eq!(propose(&mut pool, &[&row, GOOD]), [vec![], fresh_draft(GOOD)]);
            row.push(6);
        }
        for _ in 1..NUM_CALLS_AWAY {
            propose(&mut pool, &[GOOD]);
        }
        propose(&mut pool, &[GOOD, &[], &row[..3]]); // the same request, sent again
        assert_eq!(faults_of(pool.stats()), (3, 6));
        assert_eq!(pool.stats().num_new_rows, num_new_rows);
        // One that begins otherwise is another row.
        propose(&mut pool, &[&row[..2], &row[1..]]);
        assert_eq!(faults_of(pool.stats()), (5, 6));
        for _ in 0..NUM_CALLS_AWAY {
            propose(&mut pool, &[GOOD]);
        }
        propose(&mut pool, &[&row]);
        assert_eq!(faults_of(pool.stats()), (6, 6));
    }

    #[test]
    fn of_many_faulty_rows_the_latest_are_remembered() {
        let mut pool = pool(options());
        let rows: Vec<_> = (0..=TokenId::try_from(MAX_FAULTY_ROWS).unwrap()).map(|at| [at, FAULTY_TO_INDEX]).collect();
        for row in &rows {
            for _ in 0..5 {
                propose(&mut pool, &[row]);
            }
        }
        assert_eq!(faults_of(pool.stats()), (3 * 17, 2 * 17));
        propose(&mut pool, &[&rows[0], &rows[2]]); // the second one makes room for the first
        assert_eq!(faults_of(pool.stats()), (3 * 17 + 1, 2 * 17 + 1));
        propose(&mut pool, &[&rows[1]]);
        assert_eq!(faults_of(pool.stats()), (3 * 17 + 2, 2 * 17 + 1));
    }

    #[test]
    fn the_first_fault_is_told_once_with_message_and_place() {
        let mut pool = pool(options());
        propose(&mut pool, &[GOOD]);
        assert_eq!(pool.take_fault(), None);
        propose(&mut pool, &[&[1, FAULTY_TO_INDEX], &[5, FAULTY_TO_DRAFT, 5]]);
        assert_eq!(pool.stats().num_row_faults, 2);
        let fault = pool.take_fault().unwrap();
        assert_eq!(fault.message, "planted: token 902");
        assert!(fault.place.contains("faults.rs:"), "{fault:?}");
        assert_eq!(pool.take_fault(), None);
    }

    #[test]
    fn a_message_is_kept_up_to_its_limit() {
        assert_eq!(contain(|| 3), Ok(3));
        let fault = contain(|| panic!("{}", "é".repeat(1_000))).unwrap_err();
        assert_eq!(fault.message, "é".repeat(MAX_MESSAGE_LEN));
        let fault = contain(|| std::panic::panic_any(3)).unwrap_err();
        assert_eq!((&fault.message[..], fault.place.contains("faults.rs")), ("", true));
    }

    #[test]
    fn what_is_learned_goes_on_after_a_fault() {
        let acceptance = Arc::new(AcceptanceModel::learning());
        let mut pool = pool(DraftOptions { acceptance: Arc::clone(&acceptance), ..options() });
        let mut row = GOOD.to_vec();
        let mut weights = acceptance.weights();
        for step in 0..5 {
            // The draft is rejected, which is learned before the fault, and by the other row without one.
            propose(&mut pool, &[GOOD, &row]);
            propose(&mut pool, &[&[GOOD, &[9, FAULTY_TO_INDEX]].concat(), &row]);
            row.extend([20 + step, 1, 2]);
            propose(&mut pool, &[&[], &row]);
            assert_ne!(acceptance.weights(), weights);
            weights = acceptance.weights();
            assert!(weights.0.iter().all(|weight| weight.is_finite()));
        }
    }

    #[test]
    fn a_row_that_faulted_takes_nothing_of_what_a_batch_shares() {
        // A step of up to 8 tokens costs nothing more, a longer one is far too dear.
        let curve = CostCurve::new(vec![(1, 1.0), (8, 1.0), (9, 50.0)]).unwrap();
        let options = DraftOptions { draft_cost: DraftCost::Curve(curve), ..options() };
        let row: Vec<_> = (0..60).chain(0..30).collect();
        let faulty = [5, 6, FAULTY_TO_DRAFT, 5, 6];
        let drafts = propose(&mut pool(options.clone()), &[&row, &faulty]);
        assert_eq!(drafts, propose(&mut pool(options), &[&row, &[]]));
        assert_eq!(drafts[0].len(), 6);
    }

    proptest! {
        #[test]
        fn rows_without_faults_draft_like_fresh_drafters_beside_rows_with_faults(
            steps in prop::collection::vec((0..6usize, 0..6usize, prop::collection::vec(0..40i32, 1..6)), 1..60),
        ) {
            let mut pool = pool(options());
            let mut rows = vec![Vec::<TokenId>::new(); 6];
            for (at, other, tokens) in steps {
                // Mostly a small alphabet, now and then a token that work faults on, or a new request.
                rows[at].extend(tokens.iter().map(|&token| match token {
                    36..=38 => FAULTY_TO_COMPARE + token - 36,
                    _ => token % 4,
                }));
                if tokens[0] == 39 {
                    rows[at].clear();
                }
                rows.swap(at, other);
                let borrowed: Vec<&[TokenId]> = rows.iter().map(Vec::as_slice).collect();
                for (row, draft) in rows.iter().zip(propose(&mut pool, &borrowed)) {
                    if row.iter().all(|&token| token < FAULTY_TO_COMPARE) {
                        prop_assert_eq!(draft, fresh_draft(row));
                    }
                }
                pool.assert_that_stats_add_up();
            }
        }
    }
}
