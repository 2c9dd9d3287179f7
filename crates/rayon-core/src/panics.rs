// SPDX-License-Identifier: MIT OR Apache-2.0
//! Panics of spawned tasks and of handlers, which no caller can catch.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Arc;

/// The function that gets the payloads of panics in spawned tasks.
pub(crate) type PanicHandler = Arc<dyn Fn(Box<dyn Any + Send>) + Send + Sync>;

thread_local! {
    /// The panic handler of the pool of this thread.
    static PANIC_HANDLER: RefCell<Option<PanicHandler>> = const { RefCell::new(None) };
}

/// Sets the panic handler of the calling thread's pool.
pub(crate) fn set_panic_handler(handler: PanicHandler) {
    PANIC_HANDLER.set(Some(handler));
}

/// Calls a spawned function on a thread of a pool. Passes a panic to the panic handler. Ends the
/// process if there is no handler, or if the handler panics.
pub(crate) fn caught(func: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(func)) else {
        return;
    };
    let handler = PANIC_HANDLER.with_borrow(Clone::clone);
    let handled = match handler {
        Some(handler) => catch_unwind(AssertUnwindSafe(|| handler(payload))).is_ok(),
        None => false,
    };
    if !handled {
        eprintln!("usher-rayon: aborting, because a spawned task or its panic handler panicked");
        process::abort();
    }
}
