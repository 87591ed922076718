//! Token ids and counts from numpy arrays and other sequences.

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PySequence, PyString};

use crate::NgramSpecError;

/// One-dimensional token ids, borrowed from a contiguous int32 array or copied from anything else.
pub(crate) enum TokenIds<'py> {
    Borrowed(PyReadonlyArray1<'py, i32>),
    Copied(Vec<i32>),
}

impl TokenIds<'_> {
    pub(crate) fn as_slice(&self) -> &[i32] {
        match self {
            // Only arrays that are a slice are borrowed.
            Self::Borrowed(array) => array.as_slice().unwrap_or_default(),
            Self::Copied(tokens) => tokens,
        }
    }

    pub(crate) fn extract<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<TokenIds<'py>> {
        if let Ok(array) = value.extract::<PyReadonlyArray1<'py, i32>>()
            && array.as_slice().is_ok()
        // contiguous, and aligned
        {
            return Ok(TokenIds::Borrowed(array));
        }
        let rule = "token ids must fit in 32 bits";
        let narrow = |(index, value): (usize, &i64)| {
            i32::try_from(*value).map_err(|_| NgramSpecError::new_err(format!("{rule}, got {value} at index {index}")))
        };
        integers(name, value)?.iter().enumerate().map(narrow).collect::<PyResult<_>>().map(TokenIds::Copied)
    }
}

/// One-dimensional integers of any width, copied.
pub(crate) fn integers(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    // What engines pass at every step. For numbers so few, the table of all borrows would take longer than a copy.
    if let Ok(array) = value.cast::<PyArray1<i32>>()
        && let Ok(numbers) = array.to_vec()
    {
        return Ok(numbers.into_iter().map(i64::from).collect());
    }
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        if array.ndim() != 1 {
            return refuse(format!("{name} must be one-dimensional, got shape {:?}", array.shape()));
        }
        let kind: char = array.dtype().getattr("kind")?.extract()?;
        if !matches!(kind, 'i' | 'u') {
            return refuse(format!("{name} must be integers, got dtype {}", array.dtype()));
        }
        // uint64 values beyond int64 would wrap, so those are read one by one.
        if kind == 'i' {
            let wide = array.call_method1("astype", ("int64",))?;
            let wide = wide.cast::<PyArrayDyn<i64>>()?.readonly();
            return Ok(wide.as_array().iter().copied().collect());
        }
        return items(name, &array.call_method0("tolist")?);
    }
    if is_text(value) {
        return refuse(format!("{name} must be a sequence of integers, got {}", value.get_type().name()?));
    }
    items(name, value)
}

/// The lengths of what a sequence holds, or `None` where it holds anything without one.
pub(crate) fn lens_of(value: &Bound<'_, PyAny>) -> Option<Vec<u32>> {
    // Engines pass a list of lists at every step; all else may take longer.
    let items = match value.cast::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => value.cast::<PySequence>().ok()?.to_list().ok()?,
    };
    items.iter().map(|item| len_of(&item)).collect()
}

fn len_of(item: &Bound<'_, PyAny>) -> Option<u32> {
    let len = match item.cast::<PyList>() {
        Ok(list) => list.len(),
        Err(_) if is_text(item) => return None,
        Err(_) => item.len().ok()?,
    };
    Some(u32::try_from(len).unwrap_or(u32::MAX))
}

fn is_text(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>()
}

fn items(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let Ok(iterator) = value.try_iter() else {
        return refuse(format!("{name} must be a sequence of integers, got {}", value.get_type().name()?));
    };
    // An object may lie about its length.
    let mut integers = Vec::with_capacity(value.len().unwrap_or(0).min(4_096));
    for (index, item) in iterator.enumerate() {
        let item = item?;
        let Ok(integer) = item.extract::<i64>() else {
            let text: String = item.repr()?.to_string().chars().take(40).collect();
            return refuse(format!("{name} must be integers of at most 64 bits, got {text} at index {index}"));
        };
        integers.push(integer);
    }
    Ok(integers)
}

pub(crate) fn refuse<T>(message: String) -> PyResult<T> {
    Err(NgramSpecError::new_err(message))
}

/// An integer option. Beyond 64 bits it becomes the nearest that fits, which the option's own rule then refuses.
pub(crate) struct Int(pub(crate) i64);

impl<'py> FromPyObject<'_, 'py> for Int {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match value.extract::<i64>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
                Ok(Self(if value.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            other => other.map(Self),
        }
    }
}
