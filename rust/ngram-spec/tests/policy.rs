//! Drafts end where the next token would cost more than it brings, at their limits, and at EOS.

#![allow(missing_docs, clippy::unwrap_used)]

use ngram_spec::policy::{DraftPlan, plan_batch};
use ngram_spec::{CostCurve, DraftCost, DraftOptions, Drafter, Error, TokenId};
use proptest::prelude::*;

/// Expected tokens per unit of time of a draft.
fn rate(draft: &[f64], step_time: impl Fn(u32) -> f64) -> f64 {
    let mut joint = 1.0;
    let accepted: f64 = draft
        .iter()
        .map(|p| {
            joint *= p;
            joint
        })
        .sum();
    (1.0 + accepted) / step_time(u32::try_from(draft.len()).unwrap())
}

/// Checks that no other length has a better rate.
fn check_best(cost: &DraftCost, probabilities: &[f64], step_time: impl Fn(u32) -> f64) {
    let planned = rate(&probabilities[..planned_len(cost, probabilities)], &step_time);
    for len in 0..=probabilities.len() {
        assert!(planned >= rate(&probabilities[..len], &step_time) - 1e-12, "{probabilities:?} {cost:?} {len}");
    }
}

fn planned_len(cost: &DraftCost, probabilities: &[f64]) -> usize {
    let mut plan = DraftPlan::new(cost, u32::try_from(probabilities.len()).unwrap(), 0.0);
    for &p in probabilities {
        if !plan.push(p) {
            break;
        }
    }
    plan.best_len()
}

#[test]
fn each_token_pays_for_itself_at_the_current_rate() {
    // p_j > c * (1 + sum p) / (1 + c * drafted): 0.5 > 0.2, 0.25 > 0.2 * 1.5 / 1.2 = 0.25 fails.
    let cost = DraftCost::per_token(0.2).unwrap();
    assert_eq!(planned_len(&cost, &[0.5, 0.5]), 1);
    assert_eq!(planned_len(&cost, &[0.5, 0.51]), 2);
    assert_eq!(planned_len(&cost, &[0.2, 1.0]), 0);
}

#[test]
fn in_a_request_whose_steps_bring_much_a_poor_draft_is_not_worth_its_time() {
    let cost = DraftCost::per_token(0.05).unwrap();
    let len = |hit_rate| {
        let mut plan = DraftPlan::new(&cost, 16, hit_rate);
        plan.push(0.2);
        plan.best_len()
    };
    // 0.2 tokens for 0.05 of a step are 4 per step: more than the step's own rate of 1, and than the 1.3 or so of a
    // request in which few tokens are foretold, but less than the 6 or so of one in which nearly all are.
    assert_eq!((len(0.0), len(0.3), len(0.97)), (1, 1, 0));
}

#[test]
fn a_curve_with_free_tokens_behind_a_step_is_used_up_to_the_next_step() {
    // One row: 1 + drafted tokens. The second to fourth draft token are free once the first is paid.
    let points = vec![(1, 1.0), (2, 1.5), (5, 1.5), (6, 3.0)];
    let cost = DraftCost::Curve(CostCurve::new(points).unwrap());
    assert_eq!(planned_len(&cost, &[0.45, 0.9, 0.9, 0.9, 0.9]), 4);
    assert_eq!(planned_len(&cost, &[0.1, 0.9, 0.9, 0.9, 0.9]), 0);
}

proptest! {
    #[test]
    fn the_length_is_the_best_of_all_lengths(
        probabilities in prop::collection::vec(0.0..1.0f64, 0..20),
        cost in prop_oneof![Just(0.0), 0.0..1.0f64],
        steps in prop::collection::vec((1..4u32, 0.0..0.5f64), 1..10),
    ) {
        let per_token = DraftCost::per_token(cost).unwrap();
        check_best(&per_token, &probabilities, |num_drafted| 1.0 + cost * f64::from(num_drafted));

        let mut points = vec![(1, 1.0)];
        for (tokens, time) in steps {
            let &(last_tokens, last_time) = points.last().unwrap();
            points.push((last_tokens + tokens, last_time + time));
        }
        let curve = CostCurve::new(points).unwrap();
        let cost = DraftCost::Curve(curve.clone());
        check_best(&cost, &probabilities, |num_drafted| curve.step_time(1 + num_drafted));
    }
}

proptest! {
    #[test]
    fn no_other_lengths_of_a_batch_have_a_better_rate(
        rows in prop::collection::vec(prop::collection::vec(0.0..1.0f64, 0..4), 1..4),
        steps in prop::collection::vec((1..4u32, 0.0..0.5f64), 1..8),
    ) {
        let mut points = vec![(1, 1.0)];
        for (tokens, time) in steps {
            let &(last_tokens, last_time) = points.last().unwrap();
            points.push((last_tokens + tokens, last_time + time));
        }
        let curve = CostCurve::new(points).unwrap();
        let rate = |lens: &[usize]| {
            let drafts = rows.iter().zip(lens).map(|(row, &len)| rate(&row[..len], |_| 1.0));
            let num_tokens = rows.len() + lens.iter().sum::<usize>();
            drafts.sum::<f64>() / curve.step_time(u32::try_from(num_tokens).unwrap())
        };
        let probabilities: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        let planned = rate(&plan_batch(&curve, rows.len(), &probabilities));
        for number in 0..4_usize.pow(u32::try_from(rows.len()).unwrap()) {
            let lens: Vec<_> = (0..rows.len()).map(|row| number / 4_usize.pow(u32::try_from(row).unwrap()) % 4).collect();
            if lens.iter().zip(&rows).all(|(len, row)| *len <= row.len()) {
                prop_assert!(planned >= rate(&lens) - 1e-12, "{:?}", lens);
            }
        }
    }
}

#[test]
fn the_built_in_curve_is_flat_for_few_tokens_and_linear_for_many() {
    let curve = CostCurve::h100();
    assert!(curve.step_time(32) < 1.01);
    assert!((curve.step_time(2_048) / curve.step_time(1_024) - 2.0).abs() < 0.01);
}

#[test]
fn a_curve_is_linear_between_its_points_and_goes_on_as_it_ends() {
    let curve = CostCurve::new(vec![(2, 1.0), (4, 2.0), (8, 2.0), (9, 3.0)]).unwrap();
    let times = [1, 2, 3, 4, 6, 8, 9, 11].map(|tokens| curve.step_time(tokens));
    assert_eq!(times, [1.0, 1.0, 1.5, 2.0, 2.0, 2.0, 3.0, 5.0]);
}

#[test]
fn impossible_costs_are_refused_with_rule_and_value() {
    let refusal = |points| CostCurve::new(points).unwrap_err().to_string();
    assert_eq!(refusal(vec![]), "draft_cost points must be at least two (total tokens, relative time), got []");
    assert!(refusal(vec![(1, 1.0), (1, 2.0)]).contains("strictly rising token counts"));
    assert!(refusal(vec![(1, 2.0), (2, 1.0)]).contains("times that never fall, got [(1, 2.0), (2, 1.0)]"));
    assert!(refusal(vec![(0, 1.0), (2, 1.0)]).contains("token counts from 1, got (0, 1.0)"));
    assert!(refusal(vec![(1, f64::NAN), (2, 1.0)]).contains("positive and finite times, got (1, NaN)"));
    for cost in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(DraftCost::per_token(cost), Err(Error::InvalidOption { name: "draft_cost", .. })));
    }
}

#[test]
fn a_draft_that_runs_through_an_eos_id_ends_with_it() {
    let text = [1, 2, 3, 4, 5, 1];
    let draft = |eos_token_ids: Vec<TokenId>| {
        let options =
            DraftOptions { eos_token_ids, draft_cost: DraftCost::per_token(0.0).unwrap(), ..DraftOptions::default() };
        Drafter::new(&text, options).unwrap().draft(4).token_ids
    };
    assert_eq!(draft(vec![]), [2, 3, 4, 5]);
    assert_eq!(draft(vec![9, 3]), [2, 3]);
}

#[test]
fn a_match_shorter_than_the_minimum_drafts_nothing() {
    let draft = |min_match_len| {
        let options = DraftOptions { min_match_len, ..DraftOptions::default() };
        Drafter::new(&[1, 2, 3, 9, 1, 2], options).unwrap().draft(1).token_ids
    };
    assert_eq!((draft(2), draft(3)), (vec![3], vec![]));
}

#[test]
fn refused_tokens_change_nothing() {
    let mut drafter = Drafter::new(&[1, 2, 1], DraftOptions::default()).unwrap();
    let error = drafter.extend(&[2, -7]).unwrap_err();
    assert_eq!(error.to_string(), "token ids must be non-negative, got -7 at index 1");
    assert_eq!(drafter.tokens(), [1, 2, 1]);
    assert_eq!(drafter.draft(1).token_ids, [2]);
}
