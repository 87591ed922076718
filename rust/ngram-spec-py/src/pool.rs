//! `DrafterPool`.

use std::ops::RangeInclusive;
use std::sync::Mutex;

use ngram_spec::automaton::MAX_CONTEXT_LEN;
use ngram_spec::{Draft, DrafterPool, PoolOptions, PoolStats, Row, TokenId};
use numpy::{PyReadonlyArray2, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::{Int, integers, lens_of, refuse};
use crate::options::{DRAFT_LIMITS, PyAcceptanceModel, draft_limit, in_range, read_options};
use crate::{locked, refused};

#[allow(clippy::cast_possible_truncation)] // far below
const CONTEXT_LENS: RangeInclusive<u32> = 1..=MAX_CONTEXT_LEN as u32;

/// Drafts for the rows of a batch, which have no identity.
///
/// The pool recognises a row by its tokens and nothing else: rows may move, be replaced, vanish, come back, shrink or
/// jump. With the same tokens a row gets the draft that a fresh `Drafter` would give, or none while a long prompt is
/// still being indexed or has no room.
///
/// Parameters
/// ----------
/// max_bytes
///     Bound on the bytes of all indexes together. Rows that have left make room first, the oldest of them before the
///     others. When the live rows alone need more, the newest get no drafts.
/// max_context_len
///     The engine's limit on prompt and response together. Drafts leave room for the target model's own token.
/// vocab_size
///     Ids from this one on are never drafted.
/// max_draft_tokens, draft_cost, min_match_len, eos_token_ids, acceptance
///     As in `Drafter`.
///
/// Raises
/// ------
/// NgramSpecError
///     If an option is outside its range, or `max_bytes` cannot hold one row.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from ngram_spec import DrafterPool
/// >>> rows = np.array([[1, 2, 3, 1, 2], [7, 8, 9, 0, 0]], dtype=np.int32)
/// >>> DrafterPool().propose(rows, num_tokens=[5, 3], max_draft_tokens=1)
/// [[3], []]
#[pyclass(name = "DrafterPool", module = "ngram_spec", frozen)]
pub(crate) struct PyDrafterPool {
    inner: Mutex<DrafterPool>,
    max_draft_tokens: u32,
}

#[pymethods]
impl PyDrafterPool {
    #[new]
    #[pyo3(signature = (
        *, max_bytes=Int(1 << 30), max_context_len=None, vocab_size=None, max_draft_tokens=Int(16), draft_cost=None,
        min_match_len=Int(1), eos_token_ids=None, acceptance=None
    ), text_signature = "(*, max_bytes=1073741824, max_context_len=None, vocab_size=None, max_draft_tokens=16, draft_cost=0.05, min_match_len=1, eos_token_ids=(), acceptance=None)")]
    #[allow(clippy::too_many_arguments)] // keyword-only options
    fn new(
        max_bytes: Int,
        max_context_len: Option<Int>,
        vocab_size: Option<Int>,
        max_draft_tokens: Int,
        draft_cost: Option<&Bound<'_, PyAny>>,
        min_match_len: Int,
        eos_token_ids: Option<&Bound<'_, PyAny>>,
        acceptance: Option<&PyAcceptanceModel>,
    ) -> PyResult<Self> {
        let options = read_options(&max_draft_tokens, draft_cost, &min_match_len, eos_token_ids, acceptance)?;
        let max_draft_tokens = options.max_draft_tokens;
        let Ok(max_bytes) = usize::try_from(max_bytes.0) else {
            return refuse(format!("max_bytes must not be negative, got {}", max_bytes.0));
        };
        let limits = PoolOptions {
            max_bytes,
            max_context_len: max_context_len
                .map(|len| in_range("max_context_len", CONTEXT_LENS, &len.0, ""))
                .transpose()?
                .map(|len| len as usize),
            vocab_size: vocab_size.map(|size| in_range("vocab_size", 1..=u32::MAX, &size.0, "")).transpose()?,
        };
        let inner = DrafterPool::new(limits, options).map_err(|error| refused(&error))?;
        Ok(Self { inner: Mutex::new(inner), max_draft_tokens })
    }

    /// Drafts for a batch: one fresh list per row.
    ///
    /// Parameters
    /// ----------
    /// token_ids
    ///     int32[rows, cols], each row contiguous. It is read during the call and not kept; nothing past a row's
    ///     `num_tokens` is read. No other thread may write to it meanwhile.
    /// num_tokens
    ///     Valid tokens of each row, from 0 to cols. There may be fewer entries than rows.
    /// num_sampled
    ///     Tokens that each row has just been given: how many, or the tokens themselves. A row with 0 (a prompt being
    ///     prefilled) is only indexed. There may be fewer entries than in `num_tokens`, as the batch of a runner may
    ///     have fewer rows than its buffers; None has a row for each of `num_tokens`, all with 1.
    /// max_draft_tokens
    ///     Upper limit, for all rows or one per row; None uses the pool's own.
    ///
    /// Raises
    /// ------
    /// NgramSpecError
    ///     If a dtype, shape or length is wrong. A negative token id costs only its own row its drafts.
    #[pyo3(signature = (token_ids, num_tokens, num_sampled=None, max_draft_tokens=None))]
    fn propose<'py>(
        &self,
        py: Python<'py>,
        token_ids: &Bound<'_, PyAny>,
        num_tokens: &Bound<'_, PyAny>,
        num_sampled: Option<&Bound<'_, PyAny>>,
        max_draft_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let array = read_rows(token_ids)?;
        let view = array.as_array();
        let (num_rows, num_cols) = view.dim();
        let num_tokens = integers("num_tokens", num_tokens)?;
        if num_tokens.len() > num_rows {
            return refuse(format!(
                "num_tokens has at most one entry per row, got {} for {num_rows} rows",
                num_tokens.len()
            ));
        }
        let num_sampled = match num_sampled {
            None => vec![1; num_tokens.len()],
            Some(given) => match lens_of(given) {
                Some(lens) => lens,
                None => all_in_range("num_sampled", 0..=u32::MAX, &integers("num_sampled", given)?)?,
            },
        };
        if num_sampled.len() > num_tokens.len() {
            return refuse(format!(
                "num_sampled has at most one entry per entry of num_tokens, got {} for {}",
                num_sampled.len(),
                num_tokens.len()
            ));
        }
        let limits = match max_draft_tokens {
            None => vec![self.max_draft_tokens; num_sampled.len()],
            Some(max) => match max.extract::<Int>() {
                Ok(max) => vec![draft_limit(max.0)?; num_sampled.len()],
                Err(_) => limits_per_row(max, num_sampled.len())?,
            },
        };
        let mut rows = Vec::with_capacity(num_sampled.len());
        for (at, ((&len, &num_sampled), &max_draft_tokens)) in
            num_tokens.iter().zip(&num_sampled).zip(&limits).enumerate()
        {
            let valid = usize::try_from(len).ok().filter(|len| *len <= num_cols);
            let tokens = view.row(at).to_slice().zip(valid).map(|(row, len)| &row[..len]);
            let Some(tokens) = tokens else {
                return refuse(format!("num_tokens must be from 0 to {num_cols}, got {len} at row {at}"));
            };
            rows.push(Row { tokens, num_sampled, max_draft_tokens });
        }
        let (token_ids, bounds) = locked(py, &self.inner, |pool| joined(pool.propose(&rows)))?;
        PyList::new(py, bounds.windows(2).map(|bounds| &token_ids[bounds[0]..bounds[1]]))
    }

    /// The first fault of a row since this was last asked, as message and place, or None.
    ///
    /// An internal error in the work on a row costs that row its draft and its index, and the other rows nothing. After
    /// three of them rows that begin like it stand down: they get no drafts until none has been seen for 1,000 calls.
    /// Numbers in the message may be token ids.
    fn take_fault(&self, py: Python<'_>) -> PyResult<Option<(String, String)>> {
        locked(py, &self.inner, |pool| pool.take_fault().map(|fault| (fault.message, fault.place)))
    }

    /// What the pool has done so far (calls, rows, drafts, evictions...) and what it holds (entries, bytes).
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = locked(py, &self.inner, |pool| pool.stats())?;
        let dict = PyDict::new(py);
        // The pattern names every field: one that is missing here does not compile.
        macro_rules! set_items {
            ($($name:ident),+) => {{
                let PoolStats { $($name),+ } = stats;
                $(dict.set_item(stringify!($name), $name)?;)+
            }};
        }
        set_items!(
            num_calls,
            num_sampled_rows,
            num_sampled_tokens,
            num_drafts,
            num_draft_tokens,
            num_indexed_tokens,
            num_new_rows,
            num_evictions,
            num_unindexed_rows,
            num_invalid_rows,
            num_row_faults,
            num_stood_down_rows,
            num_entries,
            num_bytes
        );
        Ok(dict)
    }
}

/// The tokens of all drafts, one behind the other, and where each draft begins and the last one ends.
fn joined(drafts: &[Draft]) -> (Vec<TokenId>, Vec<usize>) {
    let mut token_ids = Vec::new();
    let mut bounds = vec![0];
    for draft in drafts {
        token_ids.extend_from_slice(&draft.token_ids);
        bounds.push(token_ids.len());
    }
    (token_ids, bounds)
}

fn read_rows<'py>(token_ids: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray2<'py, i32>> {
    let rule = "token_ids must be an int32 array of shape (rows, cols) with contiguous rows";
    let Ok(array) = token_ids.extract::<PyReadonlyArray2<'py, i32>>() else {
        let got = match token_ids.cast::<PyUntypedArray>() {
            Ok(array) => format!("dtype {} and shape {:?}", array.dtype(), array.shape()),
            Err(_) => token_ids.get_type().name()?.to_string(),
        };
        return refuse(format!("{rule}, got {got}"));
    };
    let row_is_contiguous = array.is_empty() || array.shape()[1] == 1 || array.strides()[1] == 4;
    if !row_is_contiguous {
        return refuse(format!("{rule}, got strides {:?}", array.strides()));
    }
    if !array.is_empty() && (!array.as_array().as_ptr().is_aligned() || array.strides()[0] % 4 != 0) {
        return refuse(format!("{rule}, got one that is not aligned to 4 bytes"));
    }
    Ok(array)
}

fn limits_per_row(max_draft_tokens: &Bound<'_, PyAny>, num_rows: usize) -> PyResult<Vec<u32>> {
    let limits = integers("max_draft_tokens", max_draft_tokens)?;
    if limits.len() != num_rows {
        return refuse(format!("max_draft_tokens must have one entry per row, got {} for {num_rows}", limits.len()));
    }
    all_in_range("max_draft_tokens", DRAFT_LIMITS, &limits)
}

fn all_in_range(name: &str, range: RangeInclusive<u32>, values: &[i64]) -> PyResult<Vec<u32>> {
    let checked = |(row, value)| in_range(name, range.clone(), value, format_args!(" at row {row}"));
    values.iter().enumerate().map(checked).collect()
}
