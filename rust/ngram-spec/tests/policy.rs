//! Probabilities come from the table, and drafts end where the next token would cost more than it brings.

#![allow(missing_docs, clippy::unwrap_used)]

use ngram_spec::policy::DraftPlan;
use ngram_spec::{AcceptanceModel, CostCurve, DraftCost, DraftOptions, Drafter, Error, Prior, TokenId};
use proptest::prelude::*;

/// The best length by trying each: most expected tokens per unit of time, the shortest among equals.
fn best_len_by_trial(probabilities: &[f64], step_time: impl Fn(usize) -> f64) -> usize {
    let rate = |len: usize| {
        let mut joint = 1.0;
        let accepted: f64 = probabilities[..len]
            .iter()
            .map(|p| {
                joint *= p;
                joint
            })
            .sum();
        (1.0 + accepted) / step_time(len)
    };
    (0..=probabilities.len()).fold(0, |best, len| if rate(len) > rate(best) + 1e-12 { len } else { best })
}

fn planned_len(cost: &DraftCost, probabilities: &[f64]) -> usize {
    let mut plan = DraftPlan::new(cost, u32::try_from(probabilities.len()).unwrap());
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
        #[allow(clippy::cast_precision_loss)]
        let time = |len: usize| 1.0 + cost * len as f64;
        prop_assert_eq!(planned_len(&per_token, &probabilities), best_len_by_trial(&probabilities, time));

        let mut points = vec![(1, 1.0)];
        for (tokens, time) in steps {
            let &(last_tokens, last_time) = points.last().unwrap();
            points.push((last_tokens + tokens, last_time + time));
        }
        let curve = CostCurve::new(points).unwrap();
        let time = |len: usize| curve.step_time(1 + u32::try_from(len).unwrap());
        let expected = best_len_by_trial(&probabilities, time);
        prop_assert_eq!(planned_len(&DraftCost::Curve(curve.clone()), &probabilities), expected);
    }
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

fn probability_of_first(text: &[TokenId], prior: &Prior) -> f64 {
    let acceptance = AcceptanceModel::new(prior).unwrap().into();
    let free = DraftCost::per_token(0.0).unwrap();
    let options = DraftOptions { acceptance, draft_cost: free, ..DraftOptions::default() };
    Drafter::new(text, options).unwrap().draft(1).probabilities[0]
}

fn prior(match_lens: Vec<u32>, probabilities: [Vec<f64>; 5]) -> Prior {
    Prior { match_lens, probabilities }
}

#[test]
fn each_class_of_agreement_has_its_own_probability() {
    let table = prior(vec![1], [vec![0.1], vec![0.2], vec![0.3], vec![0.4], vec![0.5]]);
    // Token 0 in places of its own, followed by these; then 0 again.
    let probability = |followers: &[TokenId]| {
        let mut text: Vec<_> = (100..).zip(followers).flat_map(|(unique, &token)| [unique, 0, token]).collect();
        text.extend([99, 0]);
        probability_of_first(&text, &table)
    };
    assert_eq!(probability(&[5]), 0.1);
    assert_eq!(probability(&[5, 5]), 0.2);
    assert_eq!(probability(&[5, 5, 5]), 0.3);
    assert_eq!(probability(&[5, 6]), 0.4);
    assert_eq!(probability(&[5, 5, 6, 7]), 0.4);
    assert_eq!(probability(&[5, 5, 6, 7, 8]), 0.5);
}

#[test]
fn between_two_match_lengths_the_logarithm_interpolates() {
    let row = vec![0.2, 0.6, 0.9];
    let table = prior(vec![1, 4, 8], std::array::from_fn(|_| row.clone()));
    let probability = |len: TokenId| {
        let mut text: Vec<_> = (1..=len).chain([99, 98]).collect();
        text.extend(1..=len);
        probability_of_first(&text, &table)
    };
    assert_eq!(probability(1), 0.2);
    assert!((probability(2) - 0.4).abs() < 1e-12);
    assert_eq!(probability(4), 0.6);
    assert_eq!(probability(20), 0.9);
}

#[test]
fn a_shorter_match_that_always_agreed_raises_the_probability_of_a_longer_one_seen_once() {
    let table = prior(vec![1], [vec![0.3], vec![0.4], vec![0.9], vec![0.1], vec![0.1]]);
    // "8 1" once, "1" three times, always followed by 2.
    assert_eq!(probability_of_first(&[7, 1, 2, 9, 1, 2, 8, 1, 2, 6, 8, 1], &table), 0.9);
}

#[test]
fn impossible_priors_are_refused_with_rule_and_value() {
    let refusal = |prior: &Prior| AcceptanceModel::new(prior).unwrap_err().to_string();
    let rows = |row: Vec<f64>| std::array::from_fn(|_| row.clone());
    assert_eq!(refusal(&prior(vec![2], rows(vec![0.5]))), "match_len must be strictly rising from 1, got [2]");
    assert_eq!(
        refusal(&prior(vec![1, 1], rows(vec![0.5, 0.5]))),
        "match_len must be strictly rising from 1, got [1, 1]"
    );
    assert_eq!(refusal(&prior(vec![1], rows(vec![]))), "once must be one prior probability per match length, got []");
    assert_eq!(refusal(&prior(vec![1], rows(vec![1.5]))), "once must be prior probabilities from 0 to 1, got 1.5");
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
    assert_eq!((drafter.tokens(), drafter.draft(1).token_ids), (&[1, 2, 1][..], vec![2]));
}
