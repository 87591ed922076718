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

/// Runs `work` on the object behind the lock, with the interpreter released.
///
/// A panic must not travel on: Python code that catches `Exception` would not stop it, and an engine would die of it.
fn locked<T: Send, R: Send>(py: Python<'_>, object: &Mutex<T>, work: impl FnOnce(&mut T) -> R + Send) -> PyResult<R> {
    py.detach(|| match object.lock() {
        Ok(mut guard) => catch_unwind(AssertUnwindSafe(|| work(&mut guard))).map_err(|panic| {
            let cause = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let cause = cause.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            PyRuntimeError::new_err(format!("internal error in ngram_spec, please report it: {cause}"))
        }),
        Err(_) => Err(PyRuntimeError::new_err("an earlier internal error left this object unusable; create a new one")),
    })
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
