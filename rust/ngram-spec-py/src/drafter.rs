//! `Drafter` and `Draft`.

use std::sync::Mutex;

use ngram_spec::drafter::Candidate;
use ngram_spec::{Draft, Drafter, Features};
use pyo3::prelude::*;

use crate::convert::{Int, TokenIds};
use crate::options::{PyAcceptanceModel, draft_limit, read_options};
use crate::{caught, locked, refused};

/// Tokens proposed for one step.
///
/// Attributes
/// ----------
/// token_ids : list[int]
///     The draft tokens.
/// probabilities : list[float]
///     Probability of each being accepted given that those before it were.
/// match_len : int
///     Length in tokens of the match that the draft continues; 0 when nothing matched.
#[pyclass(name = "Draft", module = "ngram_spec", frozen)]
pub(crate) struct PyDraft(Draft);

#[pymethods]
impl PyDraft {
    #[getter]
    fn token_ids(&self) -> Vec<i32> {
        self.0.token_ids.clone()
    }

    #[getter]
    fn probabilities(&self) -> Vec<f64> {
        self.0.probabilities.clone()
    }

    #[getter]
    fn match_len(&self) -> usize {
        self.0.match_len
    }

    fn __len__(&self) -> usize {
        self.0.token_ids.len()
    }

    fn __repr__(&self) -> String {
        format!("Draft(num_tokens={}, match_len={})", self.0.token_ids.len(), self.0.match_len)
    }
}

/// Drafts for one request.
///
/// Several threads may call one object; the interpreter is released while it works.
///
/// Parameters
/// ----------
/// prompt
///     Token ids: a one-dimensional int32 array (not copied on the way in), or any other sequence of integers.
/// max_draft_tokens
///     Upper limit per step.
/// draft_cost
///     Cost of verifying one more token, in target steps, or a `CostCurve`. About 0.01 on an idle GPU, 0.05 under
///     moderate load, 0.2 on a busy one. A draft ends where the next token would cost more than it brings.
/// min_match_len
///     Shorter matches draft nothing.
/// eos_token_ids
///     A draft ends with the first of these.
/// acceptance
///     Estimates acceptance; None uses the shipped weights, which do not learn.
///
/// Raises
/// ------
/// NgramSpecError
///     If an option is outside its range, or the prompt is not a sequence of non-negative 32-bit integers.
///
/// Examples
/// --------
/// >>> from ngram_spec import Drafter
/// >>> drafter = Drafter([1, 2, 3, 4, 9])
/// >>> drafter.extend([1, 2])  # what the target model emitted
/// >>> drafter.draft(2).token_ids
/// [3, 4]
#[pyclass(name = "Drafter", module = "ngram_spec", frozen)]
pub(crate) struct PyDrafter {
    inner: Mutex<Drafter>,
    max_draft_tokens: u32,
}

#[pymethods]
impl PyDrafter {
    #[new]
    #[pyo3(signature = (
        prompt, *, max_draft_tokens=Int(16), draft_cost=None, min_match_len=Int(1), eos_token_ids=None, acceptance=None
    ), text_signature = "(prompt, *, max_draft_tokens=16, draft_cost=0.05, min_match_len=1, eos_token_ids=(), acceptance=None)")]
    fn new(
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        max_draft_tokens: Int,
        draft_cost: Option<&Bound<'_, PyAny>>,
        min_match_len: Int,
        eos_token_ids: Option<&Bound<'_, PyAny>>,
        acceptance: Option<&PyAcceptanceModel>,
    ) -> PyResult<Self> {
        let options = read_options(&max_draft_tokens, draft_cost, &min_match_len, eos_token_ids, acceptance)?;
        let max_draft_tokens = options.max_draft_tokens;
        let prompt = TokenIds::extract("prompt", prompt)?;
        let tokens = prompt.as_slice();
        let inner = caught(py, || Drafter::new(tokens, options))?.map_err(|error| refused(&error))?;
        Ok(Self { inner: Mutex::new(inner), max_draft_tokens })
    }

    /// Appends the tokens that the target model emitted.
    ///
    /// Raises
    /// ------
    /// NgramSpecError
    ///     If they are not non-negative 32-bit integers; nothing is appended then.
    fn extend(&self, py: Python<'_>, token_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let token_ids = TokenIds::extract("token_ids", token_ids)?;
        let tokens = token_ids.as_slice();
        locked(py, &self.inner, |drafter| drafter.extend(tokens))?.map_err(|error| refused(&error))
    }

    /// Proposes the next tokens, at most `max_draft_tokens` (None: the drafter's own limit).
    #[pyo3(signature = (max_draft_tokens=None))]
    fn draft(&self, py: Python<'_>, max_draft_tokens: Option<Int>) -> PyResult<PyDraft> {
        let max = match max_draft_tokens {
            Some(max) => draft_limit(max.0)?,
            None => self.max_draft_tokens,
        };
        locked(py, &self.inner, |drafter| drafter.draft(max)).map(PyDraft)
    }

    /// All candidates at each position of the draft that would be made if every token paid: (token, features), the
    /// drafted one first. Features stand in the order of `AcceptanceModel.feature_names()`. For fitting a prior and for
    /// looking into a draft.
    #[allow(clippy::type_complexity)] // as Python sees it: list[list[tuple[int, list[float]]]]
    fn candidates(&self, py: Python<'_>, max_draft_tokens: Int) -> PyResult<Vec<Vec<(i32, Vec<f32>)>>> {
        let max = draft_limit(max_draft_tokens.0)?;
        let positions = locked(py, &self.inner, |drafter| drafter.candidates(max))?;
        let position = |candidates: Vec<(Candidate, Features)>| {
            candidates.iter().map(|(candidate, features)| (candidate.token, features.0.to_vec())).collect()
        };
        Ok(positions.into_iter().map(position).collect())
    }

    /// Bytes that the index holds.
    #[getter]
    fn num_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        locked(py, &self.inner, |drafter| drafter.num_bytes())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        locked(py, &self.inner, |drafter| drafter.tokens().len())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let len = self.__len__(py)?;
        Ok(format!("Drafter(context_len={len}, max_draft_tokens={})", self.max_draft_tokens))
    }
}
