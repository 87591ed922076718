//! Which draft tokens pay for their verification.
//!
//! A step that verifies `d` draft tokens takes longer than one that verifies none, and emits one token (the target
//! model's own) plus each draft token with the probability that it and all before it are accepted. The best draft is
//! the one with the most expected tokens per unit of time.

use crate::edges::u32_from;
use crate::error::Error;

/// Relative time of a target step by the number of tokens it verifies, over all rows of the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct CostCurve {
    points: Vec<(u32, f64)>,
}

impl CostCurve {
    /// Takes measured points (total tokens, relative time); between them the time rises linearly, and beyond the last
    /// one as it did before. Two neighbouring counts make a step.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] unless there are two points or more, token counts rise strictly from 1 or more, and
    /// times are positive, finite and never fall.
    pub fn new(points: Vec<(u32, f64)>) -> Result<Self, Error> {
        let refuse = |rule, value: &dyn std::fmt::Debug| {
            Err(Error::option("draft_cost points", rule, format_args!("{value:?}")))
        };
        if points.len() < 2 {
            return refuse("at least two (total tokens, relative time)", &points);
        }
        if let Some(point) = points.iter().find(|(_, time)| !(time.is_finite() && *time > 0.0)) {
            return refuse("of positive and finite times", point);
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1) {
            return refuse("of strictly rising token counts and times that never fall", &pair);
        }
        if points[0].0 == 0 {
            return refuse("of token counts from 1", &points[0]);
        }
        Ok(Self { points })
    }

    /// A built-in curve for GPUs of the H100 class.
    ///
    /// Modelled, not measured: reading the weights (3.35 TB/s) takes as long as computing with them (990 TFLOP/s in
    /// 16 bits, of which 60 % are reached) at some 220 tokens; around that point both bound the step.
    #[must_use]
    pub fn h100() -> Self {
        let tokens = [1, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1_024, 2_048];
        let time = |tokens: u32| (1.0 + (f64::from(tokens) / 220.0).powi(3)).cbrt();
        Self { points: tokens.map(|tokens| (tokens, time(tokens))).to_vec() }
    }

    /// Relative time of a step that verifies `num_tokens` tokens.
    #[must_use]
    pub fn step_time(&self, num_tokens: u32) -> f64 {
        let last = self.points.len() - 1;
        let above = self.points.partition_point(|&(tokens, _)| tokens < num_tokens).clamp(1, last);
        let ((from, start), (to, end)) = (self.points[above - 1], self.points[above]);
        let slope = (end - start) / f64::from(to - from);
        // Fewer tokens than the first point are not extrapolated below it: a step has a floor.
        start + slope * (f64::from(num_tokens) - f64::from(from)).max(0.0)
    }
}

/// What a step with draft tokens costs, in steps without.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftCost {
    /// Each draft token costs the same share of a step.
    PerToken(f64),
    /// A measured curve over all tokens of the step: one row's for a [`crate::Drafter`], the batch's for a pool.
    Curve(CostCurve),
}

impl DraftCost {
    /// A fixed share of a step per draft token.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] unless it is a finite number of at least 0.
    pub fn per_token(cost: f64) -> Result<Self, Error> {
        if cost.is_finite() && cost >= 0.0 {
            Ok(Self::PerToken(cost))
        } else {
            Err(Error::option("draft_cost", "a finite number of at least 0", cost))
        }
    }

    /// Relative time of a step with that many draft tokens.
    fn step_time(&self, num_drafted: u32) -> f64 {
        match self {
            Self::PerToken(cost) => 1.0 + cost * f64::from(num_drafted),
            Self::Curve(curve) => curve.step_time(1 + num_drafted),
        }
    }
}

/// Grows a draft while that can raise the rate of tokens per unit of time.
///
/// A token must pay twice: at the rate of its own step, and at the rate that the request's other steps reach, since that
/// is what the time could bring instead. The second matters for a poor step amid good ones.
#[derive(Clone, Debug)]
pub struct DraftPlan<'a> {
    cost: &'a DraftCost,
    max_draft_tokens: u32,
    /// Tokens per unit of time in the request's other steps.
    usual_rate: f64,
    num_drafted: u32,
    /// Probability that all tokens so far are accepted.
    joint: f64,
    /// Expected tokens of the step, the target model's own included.
    expected: f64,
    best: Planned,
}

/// A length that a draft could have.
#[derive(Clone, Copy, Debug)]
struct Planned {
    len: u32,
    expected: f64,
    time: f64,
}

impl Planned {
    fn rate(self) -> f64 {
        self.expected / self.time
    }
}

impl<'a> DraftPlan<'a> {
    /// An empty draft. `hit_rate` is the share of the request's recent tokens that were foretold.
    #[must_use]
    pub fn new(cost: &'a DraftCost, max_draft_tokens: u32, hit_rate: f64) -> Self {
        let best = Planned { len: 0, expected: 1.0, time: cost.step_time(0) };
        let usual_rate = usual_rate(cost, max_draft_tokens, hit_rate);
        Self { cost, max_draft_tokens, usual_rate, num_drafted: 0, joint: 1.0, expected: 1.0, best }
    }

    /// Adds a token that is accepted with `probability` given that those before it are. False when no further token
    /// can help; the token itself may not have helped either, which [`Self::best_len`] tells.
    pub fn push(&mut self, probability: f64) -> bool {
        self.num_drafted += 1;
        self.joint *= probability;
        self.expected += self.joint;
        let time = self.cost.step_time(self.num_drafted);
        let planned = Planned { len: self.num_drafted, expected: self.expected, time };
        let pays_elsewhere = planned.expected - self.best.expected > self.usual_rate * (time - self.best.time);
        let helps = planned.rate() > self.best.rate() && pays_elsewhere;
        if helps {
            self.best = planned;
        }
        let num_left = self.max_draft_tokens.saturating_sub(self.num_drafted);
        num_left > 0
            && match self.cost {
                // Equal costs and falling probabilities: once a token does not pay, none behind it does.
                DraftCost::PerToken(_) => helps,
                // After a step of the curve tokens may be free, so go on while certain acceptance of all that is left
                // could still pay.
                DraftCost::Curve(_) => (self.expected + self.joint * f64::from(num_left)) / time > self.best.rate(),
            }
    }

    /// Length of the best draft.
    #[must_use]
    pub fn best_len(&self) -> usize {
        self.best.len as usize
    }
}

/// Tokens per unit of time where each draft token is accepted with probability `hit_rate` and drafts have the best
/// length.
fn usual_rate(cost: &DraftCost, max_draft_tokens: u32, hit_rate: f64) -> f64 {
    let hit_rate = hit_rate.clamp(0.0, MAX_HIT_RATE);
    let mut usual = 1.0 / cost.step_time(0);
    let (mut joint, mut expected) = (1.0, 1.0);
    for len in 1..=max_draft_tokens {
        joint *= hit_rate;
        expected += joint;
        let rate = expected / cost.step_time(len);
        // With equal costs there is one hill; behind a step of a curve there may be a higher one.
        if joint < NEGLIGIBLE || rate <= usual && matches!(cost, DraftCost::PerToken(_)) {
            break;
        }
        usual = usual.max(rate);
    }
    usual
}

/// A token this improbable changes no rate that matters.
const NEGLIGIBLE: f64 = 1e-3;
/// A higher rate over some dozens of tokens is luck as much as skill.
const MAX_HIT_RATE: f64 = 0.97;

/// Lengths of the drafts of a batch that bring the most tokens per unit of time together.
///
/// `probabilities` holds for each row that of each draft token given those before it; `num_rows` counts all rows of the
/// step, those without a draft too. Tokens are added most probable first. A row's tokens come in their order, since
/// a token can be accepted only if all before it were.
#[must_use]
pub fn plan_batch(curve: &CostCurve, num_rows: usize, probabilities: &[&[f64]]) -> Vec<usize> {
    let mut tokens: Vec<(f64, usize)> = Vec::new();
    for (row, probabilities) in probabilities.iter().enumerate() {
        let joint = probabilities.iter().scan(1.0, |joint, p| {
            *joint *= p;
            Some(*joint)
        });
        tokens.extend(joint.map(|joint| (joint, row)));
    }
    // Stable, so that equally probable tokens of one row keep their order and the result does not depend on chance.
    tokens.sort_by(|a, b| b.0.total_cmp(&a.0));

    let mut num_tokens = u32_from(num_rows);
    let mut expected = f64::from(num_tokens);
    let (mut best_rate, mut best_num) = (expected / curve.step_time(num_tokens), 0);
    for (at, (joint, _)) in tokens.iter().enumerate() {
        num_tokens += 1;
        expected += joint;
        let rate = expected / curve.step_time(num_tokens);
        if rate > best_rate {
            (best_rate, best_num) = (rate, at + 1);
        }
    }
    let mut lens = vec![0; probabilities.len()];
    for &(_, row) in &tokens[..best_num] {
        lens[row] += 1;
    }
    lens
}
