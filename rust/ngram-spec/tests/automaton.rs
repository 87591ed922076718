//! The automaton and its naive twin agree: over a whole small world, and on random and periodic texts.

#![allow(missing_docs, clippy::unwrap_used)]

mod naive;

use ngram_spec::automaton::Continuation;
use ngram_spec::matcher::Matcher;
use ngram_spec::{AcceptanceModel, DraftCost, DraftOptions, Drafter, Feature, SuffixAutomaton, TokenId};
use proptest::prelude::*;

fn automaton_of(text: &[TokenId]) -> SuffixAutomaton {
    let mut automaton = SuffixAutomaton::default();
    for &token in text {
        automaton.push(token);
    }
    automaton
}

/// Drafts whatever matches, however improbable, and nothing else.
fn eager() -> DraftOptions {
    let sure = AcceptanceModel::new(&[(Feature::Bias, 20.0), (Feature::NoMatch, -100.0)], false).unwrap();
    DraftOptions { acceptance: sure.into(), draft_cost: DraftCost::per_token(0.0).unwrap(), ..DraftOptions::default() }
}

/// Lengths and continuations of the matches of what `all` ends with, by the twin.
fn naive_matches(text: &[TokenId], all: &[TokenId]) -> Vec<(u32, Continuation)> {
    let with_continuation = |len: usize| {
        let next = naive::continuation(text, &all[all.len() - len..]).unwrap();
        (u32::try_from(len).unwrap(), next)
    };
    naive::match_lens(text, all).into_iter().map(with_continuation).collect()
}

/// Compares the matches along a path: where `path` ends, the most frequent continuation goes on.
fn check_against_twin(text: &[TokenId], path: &[TokenId], num_drafted: usize) {
    let automaton = automaton_of(text);
    assert_eq!(automaton.tokens(), text);
    let mut matcher = Matcher::new(&automaton);
    let mut all = text.to_vec();
    for position in 0..path.len() + num_drafted {
        let found: Vec<_> = matcher.matches().map(|found| (found.len, found.next)).collect();
        assert_eq!(found, naive_matches(text, &all), "text {text:?}, then {:?}", &all[text.len()..]);
        let Some(&token) = path.get(position).or(found.first().map(|(_, next)| &next.token)) else { break };
        all.push(token);
        matcher.advance(token);
    }
    let num_drafted = u32::try_from(num_drafted).unwrap();
    let draft = Drafter::new(text, eager()).unwrap().draft(num_drafted);
    assert_eq!(draft.token_ids, naive::draft(text, num_drafted as usize), "text {text:?}");
}

#[test]
fn every_context_over_three_tokens_up_to_length_8_agrees_with_the_twin() {
    for len in 0..=8u32 {
        for number in 0..3u32.pow(len) {
            let text: Vec<TokenId> = (0..len).map(|digit| (number / 3u32.pow(digit) % 3).cast_signed()).collect();
            check_against_twin(&text, &[], 6);
        }
    }
}

#[test]
fn a_run_of_equal_tokens_longer_than_the_counted_links_agrees_with_the_twin() {
    for len in [31, 32, 33, 34, 35, 50, 70] {
        check_against_twin(&vec![7; len], &[], 3);
    }
}

#[test]
fn periodic_text_with_a_break_agrees_with_the_twin() {
    for period in [2, 3, 5] {
        let mut text: Vec<TokenId> = (0..60).map(|at| at % period).collect();
        text.extend([9, 9, 0, 1]);
        check_against_twin(&text, &[1, 0], 4);
    }
}

#[test]
fn a_draft_runs_on_into_itself_on_periodic_text() {
    let draft = Drafter::new(&[1, 2, 3, 1, 2, 3, 1], eager()).unwrap().draft(9);
    assert_eq!(draft.token_ids, [2, 3, 1, 2, 3, 1, 2, 3, 1]);
}

/// Each of `followers` behind a 0 that stands in a place of its own, and such a 0 at the end.
fn zero_followed_by(followers: impl IntoIterator<Item = TokenId>) -> Vec<TokenId> {
    let mut text: Vec<TokenId> = (1_000..).zip(followers).flat_map(|(unique, token)| [unique, 0, token]).collect();
    text.extend([999, 0]);
    text
}

#[test]
fn the_most_frequent_continuation_wins_and_the_latest_among_equals() {
    let next = |followers: &[TokenId]| {
        let text = zero_followed_by(followers.iter().copied());
        Drafter::new(&text, eager()).unwrap().draft(1).token_ids
    };
    assert_eq!(next(&[5, 6, 5]), [5]);
    assert_eq!(next(&[5, 6]), [6]);
    assert_eq!(next(&[6, 5, 7, 5, 6]), [6]);
}

#[test]
fn a_state_with_hundreds_of_continuations_counts_each() {
    // Each of 300 tokens twice, the second time in another order.
    let followers: Vec<TokenId> = (1..=300).chain((1..=300).map(|at| at * 2 % 301)).collect();
    for num_seen in 1..=followers.len() {
        let automaton = automaton_of(&zero_followed_by(followers[..num_seen].iter().copied()));
        let state = automaton.longest_match();
        assert_eq!(automaton.len_of(state), 1);
        let next = automaton.continuation(state).unwrap();
        let count = if num_seen > 300 { 2 } else { 1 };
        assert_eq!((next.token, next.count, next.total as usize), (followers[num_seen - 1], count, num_seen));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn random_texts_agree_with_the_twin(
        text in (1..12i32).prop_flat_map(|alphabet| prop::collection::vec(0..alphabet, 0..40)),
        path in prop::collection::vec(0..12i32, 0..6),
    ) {
        check_against_twin(&text, &path, 8);
    }

    #[test]
    fn texts_that_copy_and_edit_agree_with_the_twin(
        base in prop::collection::vec(0..40i32, 4..20),
        copies in prop::collection::vec((0..20usize, 1..16usize, 0..40i32), 1..4),
    ) {
        let mut text = base.clone();
        for (from, len, other) in copies {
            let from = from % base.len();
            let len = len.min(base.len() - from);
            text.extend_from_slice(&base[from..from + len]);
            text.push(other);
        }
        check_against_twin(&text, &[], 8);
    }

    #[test]
    fn an_automaton_built_in_pieces_equals_one_built_at_once(
        text in prop::collection::vec(0..4i32, 0..200), cut in 0..200usize,
    ) {
        let cut = cut.min(text.len());
        let mut whole = Drafter::new(&text, eager()).unwrap();
        let mut pieces = Drafter::new(&text[..cut], eager()).unwrap();
        pieces.extend(&text[cut..]).unwrap();
        prop_assert_eq!(whole.draft(20), pieces.draft(20));
    }
}
