//! Features say what speaks for a token, a copy finds its way back behind an edit, and weights follow what happens.

#![allow(missing_docs, clippy::unwrap_used)]

use ngram_spec::copying::Copying;
use ngram_spec::{AcceptanceModel, DraftCost, DraftOptions, Drafter, Feature, Features, TokenId};
use proptest::prelude::*;

fn free() -> DraftOptions {
    DraftOptions { draft_cost: DraftCost::per_token(0.0).unwrap(), ..DraftOptions::default() }
}

/// Features of the first draft token behind `text`.
fn features_of_first(text: &[TokenId]) -> Features {
    Drafter::new(text, free()).unwrap().candidates(1)[0][0].1
}

/// Each of `followers` behind a 0 that stands in a place of its own, and such a 0 at the end.
fn zero_followed_by(followers: &[TokenId]) -> Vec<TokenId> {
    let mut text: Vec<TokenId> = (1_000..).zip(followers).flat_map(|(unique, &token)| [unique, 0, token]).collect();
    text.extend([999, 0]);
    text
}

#[test]
fn the_continuations_of_the_match_fall_into_classes() {
    let classes = |followers: &[TokenId]| {
        let x = features_of_first(&zero_followed_by(followers));
        [Feature::Once, Feature::Twice, Feature::Always, Feature::Never].map(|feature| x[feature])
    };
    assert_eq!(classes(&[5]), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(classes(&[5, 5]), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(classes(&[5, 5, 5]), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(classes(&[5, 5, 6]), [0.0; 4]);
    let mixed = features_of_first(&zero_followed_by(&[5, 5, 6]));
    assert!((mixed[Feature::MixedOdds] - (2.4_f32 / 1.4).ln()).abs() < 1e-6);
    assert!((mixed[Feature::MixedTotal] - 3_f32.ln()).abs() < 1e-6);
}

#[test]
fn a_shorter_match_adds_what_followed_in_its_other_places() {
    // "8 1" once, followed by 2; "1" alone in two more places, followed by 2 and by 3.
    let x = features_of_first(&[7, 1, 2, 9, 1, 3, 8, 1, 2, 6, 8, 1]);
    assert_eq!(x[Feature::Once], 1.0);
    assert_eq!(x[Feature::ShorterOdds], 0.0); // one for it, one against it
    assert!((x[Feature::ShorterTotal] - 3_f32.ln()).abs() < 1e-6);
    assert!((x[Feature::Margin] - 2_f32.ln()).abs() < 1e-6);
}

#[test]
fn the_rates_tell_a_passage_that_is_copied_from_one_that_is_not() {
    let passage: Vec<TokenId> = (0..100).collect();
    let copied: Vec<_> = passage.iter().chain(&passage[..40]).copied().collect();
    let not_copied: Vec<_> = (0..140).chain([7]).collect();
    assert!(features_of_first(&copied)[Feature::FastRate] > 3.0);
    assert!(features_of_first(&not_copied)[Feature::FastRate] < -3.0);
}

/// Copies `source` up to `edit`, emits `new` instead of `removed` tokens, and copies on; returns how many tokens were
/// emitted behind the edit before the first correct draft token.
fn steps_until_resumed(new: &[TokenId], num_removed: usize) -> usize {
    // Each line has tokens of its own between two that stand in every line: the one match behind an edit is ambiguous.
    let source: Vec<TokenId> =
        (0..40).flat_map(|line| [100 + 3 * line, 101 + 3 * line, 1, 102 + 3 * line, 2]).collect();
    let edit = 100;
    let mut drafter = Drafter::new(&source, free()).unwrap();
    drafter.extend(&source[..edit]).unwrap();
    drafter.extend(new).unwrap();
    let rest = &source[edit + num_removed..];
    (0..rest.len())
        .find(|&at| {
            if at > 0 {
                drafter.extend(&rest[at - 1..at]).unwrap();
            }
            drafter.draft(1).token_ids.first() == Some(&rest[at])
        })
        .unwrap()
}

#[test]
fn copying_resumes_at_once_behind_a_substitution() {
    assert_eq!(steps_until_resumed(&[999], 1), 0);
    assert_eq!(steps_until_resumed(&[998, 999], 2), 0);
}

#[test]
fn copying_resumes_behind_an_insertion_or_a_deletion_at_the_first_token_that_is_copied() {
    assert!(steps_until_resumed(&[999], 0) <= 1);
    assert!(steps_until_resumed(&[998, 999, 997], 0) <= 1);
    assert!(steps_until_resumed(&[], 5) <= 1);
    assert!(steps_until_resumed(&[], 20) <= 1);
    // Three lines look as likely as the right one until a token of its own tells.
    assert!(steps_until_resumed(&[999], 4) <= 2);
}

#[test]
fn a_token_that_stands_in_every_line_resumes_at_the_line_of_the_edit() {
    // Behind the edit the copy goes on with 1, which stands in every line.
    let source: Vec<TokenId> = (0..40).flat_map(|line| [100 + 2 * line, 1, 101 + 2 * line, 2]).collect();
    let mut text = source.clone();
    text.extend_from_slice(&source[..60]);
    text.extend([999, 1]); // 999 instead of source[60]
    let mut drafter = Drafter::new(&text, free()).unwrap();
    assert_eq!(drafter.draft(3).token_ids, source[62..65]);
}

proptest! {
    #[test]
    fn a_copy_expects_a_token_of_the_context_and_agrees_as_far_as_it_says(
        pieces in prop::collection::vec((0..30usize, 1..12usize, 0..40i32), 1..20),
    ) {
        let mut tokens: Vec<TokenId> = (0..30).collect();
        let mut drafter = Drafter::new(&tokens, free()).unwrap();
        for (from, len, other) in pieces {
            let piece: Vec<_> = tokens[from..(from + len).min(tokens.len())].iter().copied().chain([other]).collect();
            for token in piece {
                tokens.push(token);
                drafter.extend(&[token]).unwrap();
                if let Some(copying) = drafter.copying() {
                    let Copying { next, num_agreeing, .. } = copying.located(&tokens);
                    let (next, num_agreeing) = (next as usize, num_agreeing as usize);
                    prop_assert!(num_agreeing <= next);
                    prop_assert!(tokens[..next.min(tokens.len())].ends_with(&tokens[tokens.len() - num_agreeing..]));
                }
            }
        }
    }
}

/// Steps with one draft token, accepted or not.
fn observe(model: &AcceptanceModel, num: usize, was_accepted: impl Fn(usize) -> bool) {
    let mut x = Features::ZERO;
    x[Feature::Bias] = 1.0;
    for at in 0..num {
        model.observe(&x, was_accepted(at));
    }
}

fn bias(model: &AcceptanceModel) -> f32 {
    model.weights().0[Feature::Bias as usize]
}

#[test]
fn weights_approach_what_happens() {
    let model = AcceptanceModel::new(&[(Feature::Bias, 0.0)], true).unwrap();
    observe(&model, 20_000, |at| at % 5 == 0);
    let mut x = Features::ZERO;
    x[Feature::Bias] = 1.0;
    assert!((model.weights().probability(&x) - 0.2).abs() < 0.03);
}

#[test]
fn one_odd_request_neither_moves_the_weights_far_nor_for_long() {
    let model = AcceptanceModel::new(&[(Feature::Bias, 0.0)], true).unwrap();
    observe(&model, 2_000, |at| at % 2 == 0);
    let usual = bias(&model);
    observe(&model, 1_000_000, |_| true);
    assert!(bias(&model) <= 2.0 && bias(&model).is_finite());
    observe(&model, 60_000, |at| at % 2 == 0);
    assert!((bias(&model) - usual).abs() < 0.3, "{} {usual}", bias(&model));
}

#[test]
fn without_learning_nothing_moves() {
    let model = AcceptanceModel::new(&[(Feature::Bias, 0.5)], false).unwrap();
    observe(&model, 1_000, |_| false);
    assert_eq!(bias(&model), 0.5);
}

/// Weights after a draft of four tokens and what the target model then emitted.
fn weights_after(emitted: &[TokenId]) -> [f32; 2] {
    let model = std::sync::Arc::new(AcceptanceModel::new(&[(Feature::Bias, 3.0)], true).unwrap());
    let options = DraftOptions { acceptance: std::sync::Arc::clone(&model), ..free() };
    let mut drafter = Drafter::new(&[1, 2, 3, 4, 5, 6, 1], options).unwrap();
    assert_eq!(drafter.draft(4).token_ids, [2, 3, 4, 5]);
    drafter.extend(emitted).unwrap();
    [Feature::Bias, Feature::Position].map(|feature| model.weights().0[feature as usize])
}

#[test]
fn a_rejection_teaches_about_the_first_rejected_token_only() {
    let [bias, position] = weights_after(&[2, 9]); // 2 accepted, 3 rejected, 4 and 5 unknown
    assert!(bias < 3.0 && position < 0.0);
    let [_, first_rejected] = weights_after(&[9]);
    assert_eq!(first_rejected, 0.0); // position 0 has no position feature, and no other token was learned from
}

#[test]
fn a_token_that_did_not_pay_and_was_cut_teaches_nothing() {
    let model = std::sync::Arc::new(AcceptanceModel::new(&[(Feature::Bias, 0.0)], true).unwrap());
    let draft_cost = DraftCost::per_token(0.3).unwrap();
    let options = DraftOptions { acceptance: std::sync::Arc::clone(&model), draft_cost, ..DraftOptions::default() };
    let mut drafter = Drafter::new(&[1, 2, 3, 4, 1], options).unwrap();
    assert_eq!(drafter.draft(4).token_ids, [2]); // a second one at 0.5 x 0.5 does not pay
    drafter.extend(&[2, 9]).unwrap(); // it would have been 3
    assert_eq!(model.weights().0[Feature::Position as usize], 0.0);
}

#[test]
fn what_was_cut_by_a_limit_teaches_nothing() {
    let [_, one_accepted] = weights_after(&[2]);
    assert_eq!(one_accepted, 0.0);
    assert_eq!(weights_after(&[]), [3.0, 0.0]);
}

#[test]
fn a_weight_that_is_not_finite_is_refused() {
    let error = AcceptanceModel::new(&[(Feature::OnceLen, f32::NAN)], false).unwrap_err();
    assert_eq!(error.to_string(), "once x length must be a finite weight, got NaN");
}

#[test]
fn where_drafts_keep_failing_few_are_made_and_where_copying_starts_they_are_back_within_two_steps() {
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24).cast_signed()
    };
    let prompt: Vec<TokenId> = (0..2_000).map(|_| random()).collect();
    let options = DraftOptions { draft_cost: DraftCost::per_token(0.05).unwrap(), ..DraftOptions::default() };
    let mut drafter = Drafter::new(&prompt, options).unwrap();
    let num_drafted: usize = (0..500)
        .map(|_| {
            drafter.extend(&[random()]).unwrap();
            drafter.draft(16).token_ids.len()
        })
        .sum();
    assert!(num_drafted < 100, "{num_drafted} tokens drafted in 500 steps of noise");
    drafter.extend(&prompt[100..102]).unwrap();
    assert!(!drafter.draft(16).token_ids.is_empty());
    drafter.extend(&prompt[102..106]).unwrap();
    assert!(drafter.draft(16).token_ids.len() >= 4);
}

proptest! {
    /// The twin is told what `candidates` says of each draft token, and whether that token was emitted.
    #[test]
    fn what_is_learned_is_what_spoke_for_the_tokens_of_the_last_draft(
        min_match_len in 1..4u32,
        // Up to so many tokens are drafted, so many times; so many of them, and others, are emitted, and so many of those by
        // a first call. Then a piece from so far back is copied, and edited. What is not emitted waits for the next step.
        steps in prop::collection::vec(
            (0..7u32, 0..3usize, 0..7usize, prop::collection::vec(0..12i32, 0..3), 0..9usize, 0..30usize), 1..30,
        ),
    ) {
        let model = std::sync::Arc::new(AcceptanceModel::learning());
        let twin = AcceptanceModel::learning();
        let options = DraftOptions { acceptance: std::sync::Arc::clone(&model), min_match_len, ..free() };
        let mut drafter = Drafter::new(&(0..12).chain(0..12).collect::<Vec<_>>(), options).unwrap();
        let (mut draft, mut positions): (Vec<TokenId>, _) = (Vec::new(), Vec::new());
        for (max_draft_tokens, num_drafts, num_accepted, others, num_first, back) in steps {
            for _ in 0..num_drafts {
                positions = drafter.candidates(max_draft_tokens);
                draft = drafter.draft(max_draft_tokens).token_ids;
            }
            let accepted = draft.iter().take(num_accepted).copied();
            let emitted: Vec<_> = accepted.chain(others).collect();
            let (first, rest) = emitted.split_at(num_first.min(emitted.len()));
            let told = if first.is_empty() { rest } else { first };
            for ((&draft, &token), candidates) in draft.iter().zip(told).zip(&positions) {
                let (candidate, features) = candidates[0];
                prop_assert_eq!(candidate.token, draft);
                twin.observe(&features, draft == token);
                if draft != token {
                    break;
                }
            }
            drafter.extend(first).unwrap();
            drafter.extend(rest).unwrap();
            prop_assert_eq!(model.weights(), twin.weights());
            if !emitted.is_empty() {
                draft.clear();
                let piece = &drafter.tokens()[drafter.tokens().len() - back.min(drafter.tokens().len())..];
                let piece: Vec<_> = piece.iter().take(8).copied().chain([50]).collect();
                drafter.extend(&piece).unwrap();
            }
        }
    }
}
