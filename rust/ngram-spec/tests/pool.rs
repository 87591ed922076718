//! A pool answers like fresh drafters, whatever becomes of the rows.

#![allow(missing_docs, clippy::unwrap_used)]

use ngram_spec::{CostCurve, DraftCost, DraftOptions, Drafter, DrafterPool, PoolOptions, Row, TokenId};
use proptest::prelude::*;

fn options() -> DraftOptions {
    DraftOptions { max_draft_tokens: 6, draft_cost: DraftCost::per_token(0.01).unwrap(), ..DraftOptions::default() }
}

fn pool() -> DrafterPool {
    DrafterPool::new(PoolOptions::default(), options()).unwrap()
}

fn fresh_draft(tokens: &[TokenId]) -> Vec<TokenId> {
    Drafter::new(tokens, options()).unwrap().draft(6).token_ids
}

fn propose(pool: &mut DrafterPool, rows: &[Vec<TokenId>]) -> Vec<Vec<TokenId>> {
    let rows: Vec<Row<'_>> = rows.iter().map(|tokens| Row { tokens, num_sampled: 1, max_draft_tokens: 6 }).collect();
    pool.propose(&rows).iter().map(|draft| draft.token_ids.clone()).collect()
}

/// Calls until no row is behind, and returns the drafts of the last call.
fn settle(pool: &mut DrafterPool, rows: &[Vec<TokenId>]) -> Vec<Vec<TokenId>> {
    loop {
        let before = pool.stats().num_indexed_tokens;
        let drafts = propose(pool, rows);
        if pool.stats().num_indexed_tokens == before {
            return drafts;
        }
    }
}

/// Text that repeats itself, different for each seed.
fn text(seed: TokenId, len: usize) -> Vec<TokenId> {
    let mut state = seed.cast_unsigned();
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28).cast_signed() + seed * 100
        })
        .collect()
}

/// What becomes of the rows between two calls.
#[derive(Clone, Debug)]
enum Event {
    Grow {
        row: usize,
        by: Vec<TokenId>,
    },
    Swap {
        a: usize,
        b: usize,
    },
    Leave {
        row: usize,
    },
    Join {
        len: usize,
        seed: TokenId,
    },
    /// Another request in the same place, with the same length and the same beginning.
    Replace {
        row: usize,
        keep: usize,
        seed: TokenId,
    },
    Shrink {
        row: usize,
        to: usize,
    },
    Preempt {
        row: usize,
    },
    Resume,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (any::<usize>(), prop::collection::vec(0..4i32, 1..8)).prop_map(|(row, by)| Event::Grow { row, by }),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Event::Swap { a, b }),
        1 => any::<usize>().prop_map(|row| Event::Leave { row }),
        2 => (0..200usize, 0..3i32).prop_map(|(len, seed)| Event::Join { len, seed }),
        2 => (any::<usize>(), any::<usize>(), 0..3i32)
            .prop_map(|(row, keep, seed)| Event::Replace { row, keep, seed }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(row, to)| Event::Shrink { row, to }),
        1 => any::<usize>().prop_map(|row| Event::Preempt { row }),
        1 => Just(Event::Resume),
    ]
}

fn apply(event: Event, rows: &mut Vec<Vec<TokenId>>, away: &mut Vec<Vec<TokenId>>) {
    let num_rows = rows.len();
    match event {
        Event::Join { len, seed } if num_rows < 8 => rows.push(text(seed, len)),
        Event::Resume => rows.extend(away.pop()),
        _ if num_rows == 0 => {}
        Event::Grow { row, by } => rows[row % num_rows].extend(by),
        Event::Swap { a, b } => rows.swap(a % num_rows, b % num_rows),
        // As engines condense a batch: the last row moves into the gap.
        Event::Leave { row } => drop(rows.swap_remove(row % num_rows)),
        Event::Replace { row, keep, seed } => {
            let row = &mut rows[row % num_rows];
            let len = row.len();
            row.truncate(if len == 0 { 0 } else { keep % len });
            let rest = text(seed, len - row.len());
            row.extend(rest);
        }
        Event::Shrink { row, to } => {
            let row = &mut rows[row % num_rows];
            row.truncate(to % (row.len() + 1));
        }
        Event::Preempt { row } => away.push(rows.remove(row % num_rows)),
        Event::Join { .. } => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn drafts_equal_a_fresh_drafters_whatever_becomes_of_the_rows(
        steps in prop::collection::vec((prop::collection::vec(event(), 1..4), any::<bool>()), 1..40),
    ) {
        let (mut pool, mut rows, mut away) = (pool(), Vec::new(), Vec::new());
        for (events, called) in steps {
            for event in events {
                apply(event, &mut rows, &mut away);
            }
            // An engine can skip the call for a whole step.
            if called {
                let expected: Vec<_> = rows.iter().map(|row| fresh_draft(row)).collect();
                prop_assert_eq!(propose(&mut pool, &rows), expected);
            }
        }
    }
}

#[test]
fn a_row_that_moves_or_returns_is_not_indexed_again() {
    let mut pool = pool();
    let mut rows: Vec<_> = (0..4).map(|seed| text(seed, 100)).collect();
    propose(&mut pool, &rows);
    rows.rotate_left(1);
    rows.iter_mut().for_each(|row| row.push(3));
    propose(&mut pool, &rows);
    let away = rows.pop().unwrap();
    propose(&mut pool, &rows);
    rows.insert(0, away);
    propose(&mut pool, &rows);
    let stats = pool.stats();
    assert_eq!((stats.num_new_rows, stats.num_indexed_tokens), (4, 404));
}

#[test]
fn a_long_prompt_is_indexed_in_slices_and_drafts_nothing_until_then() {
    let mut pool = pool();
    let rows = [text(1, 20_000), text(2, 100)];
    let first = propose(&mut pool, &rows);
    assert_eq!(first, [vec![], fresh_draft(&rows[1])]);
    assert_eq!(pool.stats().num_indexed_tokens, 8_192 + 100);
    assert_eq!(settle(&mut pool, &rows)[0], fresh_draft(&rows[0]));
}

#[test]
fn a_long_row_that_is_replaced_is_noticed_at_once_where_tail_length_or_place_tell() {
    let old = text(1, 20_000);
    let mut other = old.clone();
    other[10_000] = 9_999; // deep inside, so that the tail is the same
    let mut different_tail = old.clone();
    *different_tail.last_mut().unwrap() = 9_999;
    let jumped: Vec<_> = other.iter().copied().chain(text(1, 200)).collect();
    for new in [different_tail, jumped] {
        let mut pool = pool();
        settle(&mut pool, std::slice::from_ref(&old));
        assert_eq!(propose(&mut pool, std::slice::from_ref(&new)), [vec![]]);
        assert_eq!(settle(&mut pool, std::slice::from_ref(&new)), [fresh_draft(&new)]);
        assert_eq!(pool.stats().num_new_rows, 2);
    }
    // The same length and tail, but in another row.
    let mut pool = pool();
    settle(&mut pool, &[old.clone(), text(2, 10)]);
    propose(&mut pool, &[text(2, 10), other]);
    assert_eq!(pool.stats().num_new_rows, 3);
}

#[test]
fn a_long_row_that_is_replaced_by_another_text_with_the_same_end_is_noticed_at_once() {
    let end = text(3, 100);
    let [old, new] = [1, 2].map(|seed| [text(seed, 20_000), end.clone()].concat());
    let mut pool = pool();
    settle(&mut pool, &[old]);
    assert_eq!(propose(&mut pool, &[new]), [vec![]]);
    assert_eq!(pool.stats().num_new_rows, 2);
}

#[test]
fn a_long_row_that_is_replaced_in_the_middle_only_is_noticed_within_few_calls() {
    let mut pool = pool();
    let mut rows = [text(1, 20_000)];
    settle(&mut pool, &rows);
    rows[0][10_000] = 9_999;
    for _ in 0..10 {
        propose(&mut pool, &rows);
    }
    assert_eq!(pool.stats().num_new_rows, 2);
}

#[test]
fn rows_that_left_make_room_oldest_first_and_the_bound_holds() {
    let limits = PoolOptions { max_bytes: 10 * 64 * 1_000, max_context_len: Some(1_000), vocab_size: None };
    let mut pool = DrafterPool::new(limits, options()).unwrap();
    for seed in 0..100 {
        let rows = [text(seed, 900), text(seed + 1, 900)];
        assert_eq!(settle(&mut pool, &rows), rows.clone().map(|row| fresh_draft(&row)));
        assert!(pool.stats().num_bytes <= 10 * 64 * 1_000, "{:?}", pool.stats());
    }
    assert!(pool.stats().num_evictions > 80, "{:?}", pool.stats());
    // The latest rows are still known, the first ones are not.
    let before = pool.stats().num_new_rows;
    settle(&mut pool, &[text(98, 900)]);
    assert_eq!(pool.stats().num_new_rows, before);
    settle(&mut pool, &[text(0, 900)]);
    assert_eq!(pool.stats().num_new_rows, before + 1);
}

#[test]
fn live_rows_that_exceed_the_bound_leave_the_newest_without_drafts_and_never_thrash() {
    let limits = PoolOptions { max_bytes: 64 * 1_000, max_context_len: Some(1_000), vocab_size: None };
    let mut pool = DrafterPool::new(limits, options()).unwrap();
    let mut rows: Vec<_> = (0..4).map(|seed| text(seed, 300)).collect();
    let drafts = settle(&mut pool, &rows);
    assert_eq!(drafts[..3], rows[..3].iter().map(|row| fresh_draft(row)).collect::<Vec<_>>());
    assert_eq!(drafts[3], []);
    // The three outgrow the bound: the newest of them leaves, once.
    for step in 0..100 {
        rows.iter_mut().for_each(|row| row.push(step % 3));
        propose(&mut pool, &rows);
    }
    let stats = pool.stats();
    assert_eq!((stats.num_evictions, stats.num_new_rows, stats.num_entries), (1, 3, 2));
    assert!(stats.num_bytes <= 64 * 1_000);
    // When a row leaves, the next one gets its room.
    rows.remove(0);
    propose(&mut pool, &rows);
    assert_eq!(settle(&mut pool, &rows)[1], fresh_draft(&rows[1]));
}

#[test]
fn a_row_that_outgrew_the_bound_keeps_no_later_row_out() {
    let limits = PoolOptions { max_bytes: 64 * 1_024, ..PoolOptions::default() };
    for stays in [vec![], vec![text(1, 50)]] {
        let mut pool = DrafterPool::new(limits.clone(), options()).unwrap();
        for len in (900..2_000).step_by(50) {
            propose(&mut pool, &[stays.clone(), vec![vec![5; len]]].concat());
        }
        assert!(pool.stats().num_evictions > 0);
        let small = text(2, 60);
        let drafts = propose(&mut pool, &[stays, vec![small.clone()]].concat());
        assert_eq!(drafts.last(), Some(&fresh_draft(&small)));
    }
}

#[test]
fn limits_of_row_pool_vocabulary_and_context_hold() {
    let tokens = [1, 2, 3, 50, 1, 2];
    let limits = PoolOptions { max_context_len: Some(9), vocab_size: Some(50), ..PoolOptions::default() };
    let mut pool = DrafterPool::new(limits, options()).unwrap();
    let mut draft = |tokens: &[TokenId], max_draft_tokens| {
        pool.propose(&[Row { tokens, num_sampled: 1, max_draft_tokens }])[0].token_ids.clone()
    };
    assert_eq!(fresh_draft(&tokens)[..3], [3, 50, 1]);
    assert_eq!(draft(&tokens, 6), [3]); // 50 is outside the vocabulary
    assert_eq!(draft(&tokens, 0), []);
    let periodic = [7, 7, 7, 7, 7, 7];
    assert_eq!(draft(&periodic, 6), [7, 7]); // one of the three places left is the target model's own
    assert_eq!(draft(&periodic, 1), [7]);
    assert_eq!(draft(&[7; 8], 6), []);
    assert_eq!(draft(&[7; 12], 6), []);
}

#[test]
fn under_a_cost_curve_the_rows_of_a_batch_share_what_pays() {
    // A step of up to 8 tokens costs nothing more, a longer one is far too dear.
    let curve = CostCurve::new(vec![(1, 1.0), (8, 1.0), (9, 50.0)]).unwrap();
    let options = DraftOptions { draft_cost: DraftCost::Curve(curve), ..options() };
    let mut pool = DrafterPool::new(PoolOptions::default(), options).unwrap();
    let long: Vec<TokenId> = (0..60).chain(0..30).collect();
    let short: Vec<TokenId> = (100..160).chain([100]).collect();
    let mut lens = |rows: &[Vec<TokenId>]| -> Vec<usize> { propose(&mut pool, rows).iter().map(Vec::len).collect() };
    assert_eq!(lens(std::slice::from_ref(&long)), [6]);
    let shared = lens(&[long.clone(), short.clone(), text(3, 5)]);
    assert_eq!(shared.iter().sum::<usize>(), 5);
    assert!(shared[0] > shared[1], "{shared:?}"); // the longer match is the more probable
    assert_eq!(lens(&vec![long; 9]), [0; 9]);
}

#[test]
fn a_negative_id_costs_only_its_own_row_its_drafts() {
    let mut pool = pool();
    let good = text(1, 50);
    let mut bad = text(2, 50);
    bad[20] = -1;
    for _ in 0..3 {
        assert_eq!(propose(&mut pool, &[bad.clone(), good.clone()]), [vec![], fresh_draft(&good)]);
    }
    assert_eq!((pool.stats().num_invalid_rows, pool.stats().num_new_rows), (3, 1));
    // It also loses them when the id comes later.
    let mut later = good.clone();
    later.push(-5);
    assert_eq!(propose(&mut pool, &[good.clone(), later]), [fresh_draft(&good), vec![]]);
}

#[test]
fn impossible_capacities_are_refused_with_a_sentence() {
    let limits = PoolOptions { max_bytes: 1_000, ..PoolOptions::default() };
    let error = DrafterPool::new(limits, options()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "max_bytes must be at least 64 bytes for each token of max_context_len (65536 where that is not given), got 1000"
    );
}
