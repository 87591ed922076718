//! The Python face of `ngram-spec`: conversions, locks and docstrings; no decisions.

mod convert;
mod drafter;
mod options;
mod pool;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    ngram_spec,
    NgramSpecError,
    PyValueError,
    "A call was refused. The message carries the rule, the value and the place; nothing was changed."
);

/// A refusal by the core crate, as Python sees it.
fn refused(error: &ngram_spec::Error) -> PyErr {
    NgramSpecError::new_err(error.to_string())
}

/// Runs `work` with the interpreter released.
///
/// A panic must not travel on: Python code that catches `Exception` would not stop it, and an engine would die of it.
fn caught<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work))).map_err(|panic| {
        let cause = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let cause = cause.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        PyRuntimeError::new_err(format!("internal error in ngram_spec, please report it: {cause}"))
    })
}

/// Runs `work` on the object behind the lock, which is taken with the interpreter released.
///
/// The guard is dropped while a panic unwinds, so an object that was left half changed refuses all further calls.
fn locked<T: Send, R: Send>(py: Python<'_>, object: &Mutex<T>, work: impl FnOnce(&mut T) -> R + Send) -> PyResult<R> {
    caught(py, || object.lock().ok().map(|mut guard| work(&mut guard)))?
        .ok_or_else(|| PyRuntimeError::new_err("an earlier internal error left this object unusable; create a new one"))
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::NgramSpecError;
    #[pymodule_export]
    use super::drafter::{PyDraft, PyDrafter};
    #[pymodule_export]
    use super::options::{PyAcceptanceModel, PyCostCurve};
    #[pymodule_export]
    use super::pool::PyDrafterPool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_an_object_refuses_further_calls() {
        let object = Mutex::new(0);
        let call = |fails: bool| {
            catch_unwind(AssertUnwindSafe(|| {
                object.lock().ok().map(|mut guard| {
                    *guard += 1;
                    assert!(!fails, "half changed");
                    *guard
                })
            }))
        };
        assert!(matches!(call(false), Ok(Some(1))));
        assert!(call(true).is_err());
        assert!(matches!(call(false), Ok(None)));
    }
}
