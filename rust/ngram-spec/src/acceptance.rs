//! How probable it is that the target model agrees with a draft token.
//!
//! A logistic model over [`Features`]: the shipped weights serve every text, and with learning on they follow what the
//! target model accepts and rejects.

use std::sync::{Mutex, PoisonError};

use crate::automaton::TokenId;
use crate::error::Error;
use crate::features::{Feature, Features, NUM_FEATURES, Situation};
use crate::prior;

/// Estimates acceptance. Its owner hands it to drafters and pools, so that what it learns has one place.
///
/// ```
/// use ngram_spec::{AcceptanceModel, Feature, Features};
///
/// let model = AcceptanceModel::new(&[(Feature::Bias, 0.0), (Feature::Once, 2.0)], false)?;
/// let mut features = Features::ZERO;
/// features[Feature::Bias] = 1.0;
/// assert_eq!(model.weights().probability(&features), 0.5);
/// features[Feature::Once] = 1.0;
/// assert!(model.weights().probability(&features) > 0.88);
/// # Ok::<(), ngram_spec::Error>(())
/// ```
#[derive(Debug)]
pub struct AcceptanceModel {
    prior: Weights,
    learned: Option<Mutex<Learned>>,
}

/// One weight per [`Feature`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights(pub [f32; NUM_FEATURES]);

impl Weights {
    /// Probability of acceptance, from 0 to 1.
    #[must_use]
    pub fn probability(&self, features: &Features) -> f64 {
        logistic(self.0.iter().zip(&features.0).map(|(weight, feature)| weight * feature).sum())
    }

    /// The same without writing the features down.
    #[must_use]
    pub fn probability_of(&self, situation: &Situation<'_>, token: TokenId) -> f64 {
        let mut sum = 0.0;
        situation.describe(token, &mut |feature, value| sum += self.0[feature as usize] * value);
        logistic(sum)
    }

    fn from_pairs(pairs: &[(Feature, f32)]) -> Self {
        let mut weights = [0.0; NUM_FEATURES];
        for &(feature, weight) in pairs {
            weights[feature as usize] = weight;
        }
        Self(weights)
    }
}

fn logistic(log_odds: f32) -> f64 {
    f64::from(1.0 / (1.0 + (-log_odds).exp()))
}

/// Weights that move, each the slower the more evidence there is for it.
#[derive(Clone, Debug)]
struct Learned {
    weights: Weights,
    /// How much is known about each weight: the sum of the curvature of the likelihood along it.
    evidence: [f32; NUM_FEATURES],
}

/// What the prior is worth, in evidence.
const PRIOR_EVIDENCE: f32 = 300.0;
/// Evidence beyond this is forgotten, so that the weights can follow a change of traffic.
const MAX_EVIDENCE: f32 = 3_000.0;
/// No weight moves further from the prior than this, whatever is seen.
const MAX_SHIFT: f32 = 2.0;

impl Default for AcceptanceModel {
    fn default() -> Self {
        Self::from_valid(Weights(prior::WEIGHTS), false)
    }
}

impl AcceptanceModel {
    /// Takes weights of one's own; those that are not named are 0.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when a weight is not finite.
    pub fn new(prior: &[(Feature, f32)], learn: bool) -> Result<Self, Error> {
        match prior.iter().find(|(_, weight)| !weight.is_finite()) {
            Some((feature, weight)) => Err(Error::option(feature.name(), "a finite weight", weight)),
            None => Ok(Self::from_valid(Weights::from_pairs(prior), learn)),
        }
    }

    /// The shipped weights, followed by what is learned.
    #[must_use]
    pub fn learning() -> Self {
        Self::from_valid(Weights(prior::WEIGHTS), true)
    }

    fn from_valid(prior: Weights, learn: bool) -> Self {
        let start = || Mutex::new(Learned { weights: prior, evidence: [PRIOR_EVIDENCE; NUM_FEATURES] });
        Self { prior, learned: learn.then(start) }
    }

    /// Whether [`Self::observe`] changes anything.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.learned.is_some()
    }

    /// The weights as they stand.
    #[must_use]
    pub fn weights(&self) -> Weights {
        match &self.learned {
            // Weights are whole at any moment, so a panic elsewhere has not harmed them.
            Some(learned) => learned.lock().unwrap_or_else(PoisonError::into_inner).weights,
            None => self.prior,
        }
    }

    /// Learns from a draft token that the target model accepted, or from the first one of a draft that it rejected.
    pub fn observe(&self, features: &Features, was_accepted: bool) {
        if let Some(learned) = &self.learned {
            let mut learned = learned.lock().unwrap_or_else(PoisonError::into_inner);
            learned.observe(features, was_accepted, &self.prior);
        }
    }
}

impl Learned {
    #[allow(clippy::cast_possible_truncation)] // a probability
    fn observe(&mut self, features: &Features, was_accepted: bool, prior: &Weights) {
        let p = self.weights.probability(features) as f32;
        let error = f32::from(u8::from(was_accepted)) - p;
        let curvature = p * (1.0 - p);
        let moved = self.weights.0.iter_mut().zip(&mut self.evidence).zip(&features.0).zip(&prior.0);
        for (((weight, evidence), feature), prior) in moved {
            *evidence = (*evidence + curvature * feature * feature).min(MAX_EVIDENCE);
            *weight = (*weight + error * feature / *evidence).clamp(prior - MAX_SHIFT, prior + MAX_SHIFT);
        }
    }
}
