//! The options that drafters and pools share.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ngram_spec::drafter::MAX_DRAFT_TOKENS;
use ngram_spec::{AcceptanceModel, CostCurve, DraftCost, DraftOptions, Feature};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::convert::{Int, TokenIds, refuse};
use crate::refused;

/// Estimates how probable it is that the target model accepts a draft token.
///
/// A logistic model. Drafters and pools that are given the same object share what it learns.
///
/// Parameters
/// ----------
/// prior
///     Weights by feature name (see `feature_names`); those that are missing are 0. None takes the shipped weights.
/// learn
///     Whether the weights follow what the target model accepts and rejects. They never move far from the prior.
///
/// Raises
/// ------
/// NgramSpecError
///     If a name is unknown or a weight is not a finite number.
///
/// Examples
/// --------
/// >>> from ngram_spec import AcceptanceModel, Drafter
/// >>> coin = AcceptanceModel({"bias": 0.0})
/// >>> Drafter([1, 2, 3, 1], acceptance=coin).draft(2).probabilities
/// [0.5, 0.5]
#[pyclass(name = "AcceptanceModel", module = "ngram_spec", frozen)]
pub(crate) struct PyAcceptanceModel(Arc<AcceptanceModel>);

#[pymethods]
impl PyAcceptanceModel {
    #[new]
    #[pyo3(signature = (prior=None, *, learn=false))]
    fn new(prior: Option<&Bound<'_, PyMapping>>, learn: bool) -> PyResult<Self> {
        let model = match prior {
            Some(prior) => AcceptanceModel::new(&read_prior(prior)?, learn).map_err(|error| refused(&error))?,
            None if learn => AcceptanceModel::learning(),
            None => AcceptanceModel::default(),
        };
        Ok(Self(Arc::new(model)))
    }

    /// The names of the features that have weights.
    #[staticmethod]
    fn feature_names() -> Vec<&'static str> {
        Feature::ALL.iter().map(|feature| feature.name()).collect()
    }

    /// The weights as they stand, by feature name.
    fn weights(&self, py: Python<'_>) -> BTreeMap<&'static str, f32> {
        let weights = py.detach(|| self.0.weights());
        Feature::ALL.iter().map(|&feature| (feature.name(), weights.0[feature as usize])).collect()
    }
}

fn read_prior(prior: &Bound<'_, PyMapping>) -> PyResult<Vec<(Feature, f32)>> {
    let mut weights = Vec::new();
    for item in prior.items()? {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let name = name.str()?.to_string();
        let Some(feature) = Feature::ALL.iter().copied().find(|feature| feature.name() == name) else {
            let names: Vec<_> = Feature::ALL.iter().map(|feature| feature.name()).collect();
            return refuse(format!("prior has weights for {}, got {name}", names.join(", ")));
        };
        let Ok(weight) = value.extract::<f32>() else {
            return refuse(format!("prior {name} must be a number, got {}", value.repr()?));
        };
        weights.push((feature, weight));
    }
    Ok(weights)
}

/// Relative time of a target step by the number of tokens that it verifies, over all rows of the batch.
///
/// Parameters
/// ----------
/// points
///     At least two pairs (total tokens, relative time), token counts rising strictly from 1 or more, times positive
///     and never falling. Time rises linearly between points; two neighbouring counts make a step. A `Drafter` reads
///     the curve at one row; a `DrafterPool` shares what pays among the rows of the batch.
///
/// Raises
/// ------
/// NgramSpecError
///     If the points break one of these rules.
///
/// Examples
/// --------
/// >>> from ngram_spec import CostCurve, Drafter
/// >>> free_up_to_four = CostCurve([(1, 1.0), (4, 1.0), (5, 9.0)])
/// >>> len(Drafter([1, 2, 3, 4, 5, 6, 1], draft_cost=free_up_to_four).draft())
/// 3
#[pyclass(name = "CostCurve", module = "ngram_spec", frozen)]
pub(crate) struct PyCostCurve(CostCurve);

#[pymethods]
impl PyCostCurve {
    #[new]
    fn new(points: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(points) = points.extract::<Vec<(u32, f64)>>() else {
            return refuse(format!("points must be pairs (total tokens, relative time), got {points}"));
        };
        CostCurve::new(points).map(Self).map_err(|error| refused(&error))
    }

    /// A built-in curve for GPUs of the H100 class: modelled from their memory bandwidth and arithmetic, not measured.
    #[staticmethod]
    fn h100() -> Self {
        Self(CostCurve::h100())
    }

    /// Relative time of a step that verifies so many tokens.
    fn step_time(&self, num_tokens: Int) -> PyResult<f64> {
        Ok(self.0.step_time(in_range("num_tokens", 0..=u32::MAX, &num_tokens.0, "")?))
    }
}

/// A constant cost per draft token, or a curve.
fn read_cost(value: &Bound<'_, PyAny>) -> PyResult<DraftCost> {
    if let Ok(curve) = value.cast::<PyCostCurve>() {
        return Ok(DraftCost::Curve(curve.get().0.clone()));
    }
    let Ok(cost) = value.extract::<f64>() else {
        return refuse(format!("draft_cost must be a number or a CostCurve, got {}", value.get_type().name()?));
    };
    DraftCost::per_token(cost).map_err(|error| refused(&error))
}

/// The options as Python passes them; `None` takes the default.
pub(crate) fn read_options(
    max_draft_tokens: &Int,
    draft_cost: Option<&Bound<'_, PyAny>>,
    min_match_len: &Int,
    eos_token_ids: Option<&Bound<'_, PyAny>>,
    acceptance: Option<&PyAcceptanceModel>,
) -> PyResult<DraftOptions> {
    let mut options = DraftOptions {
        max_draft_tokens: draft_limit(max_draft_tokens.0)?,
        min_match_len: in_range("min_match_len", 1..=u32::MAX, &min_match_len.0, "")?,
        ..DraftOptions::default()
    };
    if let Some(cost) = draft_cost {
        options.draft_cost = read_cost(cost)?;
    }
    if let Some(ids) = eos_token_ids {
        TokenIds::extract("eos_token_ids", ids)?.as_slice().clone_into(&mut options.eos_token_ids);
    }
    if let Some(model) = acceptance {
        options.acceptance = Arc::clone(&model.0);
    }
    Ok(options)
}

/// A limit of draft tokens. Where drafts cost nothing, periodic text fills any limit, so an absurd one is refused.
pub(crate) fn draft_limit(value: i64) -> PyResult<u32> {
    in_range("max_draft_tokens", DRAFT_LIMITS, &value, "")
}

pub(crate) const DRAFT_LIMITS: RangeInclusive<u32> = 0..=MAX_DRAFT_TOKENS;

/// A number of this range; `place` ends the sentence that refuses any other.
pub(crate) fn in_range(name: &str, range: RangeInclusive<u32>, value: &i64, place: impl Display) -> PyResult<u32> {
    match u32::try_from(*value) {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => refuse(format!("{name} must be from {} to {}, got {value}{place}", range.start(), range.end())),
    }
}
