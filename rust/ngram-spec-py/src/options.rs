//! The options that drafters and pools share.

use std::sync::Arc;

use ngram_spec::acceptance::Agreement;
use ngram_spec::{AcceptanceModel, CostCurve, DraftCost, DraftOptions, Prior};
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::convert::{TokenIds, refuse};
use crate::refused;

/// Estimates how probable it is that the target model accepts a draft token.
///
/// Drafters and pools that are given the same object share what it knows. Without a prior it uses the shipped table.
///
/// Parameters
/// ----------
/// prior
///     A table of probabilities: the key `match_len` holds match lengths that rise from 1, and each of the keys
///     `once`, `twice`, `always`, `majority` and `plurality` one probability per match length. The keys say how the
///     match was continued before: once; twice or more by the same token; at least half of the time by the most
///     frequent token; less than that.
/// learn
///     Must be False: learning from accepted and rejected tokens is not available in this version.
///
/// Raises
/// ------
/// NgramSpecError
///     If a key is missing or unknown, or a value is outside its range.
///
/// Examples
/// --------
/// >>> from ngram_spec import AcceptanceModel, Drafter
/// >>> sure = {"match_len": [1], **dict.fromkeys(["once", "twice", "always", "majority", "plurality"], [0.9])}
/// >>> Drafter([1, 2, 3, 1], acceptance=AcceptanceModel(sure)).draft(2).probabilities
/// [0.9, 0.9]
#[pyclass(name = "AcceptanceModel", module = "ngram_spec", frozen)]
pub(crate) struct PyAcceptanceModel(Arc<AcceptanceModel>);

#[pymethods]
impl PyAcceptanceModel {
    #[new]
    #[pyo3(signature = (prior=None, *, learn=false))]
    fn new(prior: Option<&Bound<'_, PyMapping>>, learn: bool) -> PyResult<Self> {
        if learn {
            return refuse("learn must be False in this version, got True".to_owned());
        }
        let Some(prior) = prior else {
            return Ok(Self(Arc::default()));
        };
        let model = AcceptanceModel::new(&read_prior(prior)?).map_err(|error| refused(&error))?;
        Ok(Self(Arc::new(model)))
    }
}

fn read_prior(prior: &Bound<'_, PyMapping>) -> PyResult<Prior> {
    const MATCH_LEN: &str = "match_len";
    let names = Agreement::ALL.map(Agreement::name);
    for key in prior.keys()? {
        let key: String = key.str()?.to_string();
        if key != MATCH_LEN && !names.contains(&key.as_str()) {
            return refuse(format!("prior has the keys {MATCH_LEN}, {}, got {key}", names.join(", ")));
        }
    }
    let numbers = |name: &str| -> PyResult<Vec<f64>> {
        if !prior.contains(name)? {
            return refuse(format!("prior needs the key {name}"));
        }
        let value = prior.get_item(name)?;
        value.extract().or_else(|_| refuse(format!("prior {name} must be a list of numbers, got {value}")))
    };
    let mut match_lens = Vec::new();
    for len in numbers(MATCH_LEN)? {
        if len.fract() != 0.0 || !(1.0..=1e6).contains(&len) {
            return refuse(format!("prior {MATCH_LEN} must be whole numbers from 1 to 1000000, got {len}"));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked above
        match_lens.push(len as u32);
    }
    let mut probabilities: [Vec<f64>; 5] = Default::default();
    for (row, name) in probabilities.iter_mut().zip(names) {
        *row = numbers(name)?;
    }
    Ok(Prior { match_lens, probabilities })
}

/// Relative time of a target step by the number of tokens that it verifies, over all rows of the batch.
///
/// Parameters
/// ----------
/// points
///     At least two pairs (total tokens, relative time), token counts rising strictly from 1 or more, times positive
///     and never falling. Time rises linearly between points; two neighbouring counts make a step. In this version the
///     curve is read at one row.
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
    max_draft_tokens: i64,
    draft_cost: Option<&Bound<'_, PyAny>>,
    min_match_len: i64,
    eos_token_ids: Option<&Bound<'_, PyAny>>,
    acceptance: Option<&PyAcceptanceModel>,
) -> PyResult<DraftOptions> {
    let mut options = DraftOptions {
        max_draft_tokens: limit("max_draft_tokens", max_draft_tokens)?,
        min_match_len: limit("min_match_len", min_match_len)?,
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

/// A count that must not be negative.
pub(crate) fn limit(name: &str, value: i64) -> PyResult<u32> {
    u32::try_from(value).or_else(|_| refuse(format!("{name} must be from 0 to {}, got {value}", u32::MAX)))
}
