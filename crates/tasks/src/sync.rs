// SPDX-License-Identifier: MIT OR Apache-2.0
//! What threads share, from the standard library or, to be explored in every
//! interleaving, from loom. Lock-free parts take it from here alone. Counters that
//! order nothing (`counters`, `guess`, groups of a job) do not, nor does what is static,
//! which loom does not have.
//!
//! Locks, too: the standard library comes without ThreadSanitizer's instrumentation,
//! which does not see what its locks order. With the feature `tsan` they are those of
//! parking_lot, which are compiled with the tests. Neither kind is poisoned: nothing
//! is done behind a lock that leaves things halfway where it panics.

#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// An atomic that nobody else has at present, and so need not be one.
pub(crate) trait Put<T> {
    fn put(&mut self, value: T);
}

macro_rules! put {
    ($atomic:ty, $of:ty) => {
        impl Put<$of> for $atomic {
            #[inline(always)]
            fn put(&mut self, value: $of) {
                #[cfg(not(feature = "loom"))]
                let () = *self.get_mut() = value;
                #[cfg(feature = "loom")]
                self.with_mut(|place| *place = value);
            }
        }
    };
}

put!(AtomicU8, u8);
put!(AtomicU32, u32);
put!(AtomicU64, u64);

#[cfg(not(feature = "loom"))]
pub(crate) use std::thread;

#[cfg(feature = "loom")]
pub(crate) use loom::thread;

#[cfg(not(feature = "loom"))]
pub(crate) use lock::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "loom")]
pub(crate) use explored::{Condvar, Mutex, MutexGuard};

/// A lock that may be static.
pub(crate) use lock::Mutex as StaticMutex;

#[cfg(not(feature = "tsan"))]
#[cfg_attr(
    feature = "loom",
    expect(dead_code, reason = "only what is static is used")
)]
mod lock {
    use std::sync::{self, PoisonError};

    pub(crate) use sync::MutexGuard;

    /// A lock.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Where holders of a lock wait for one another.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        /// Gives the lock up, and has it again when told, or for no reason.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(feature = "loom")]
mod explored {
    use std::sync::PoisonError;

    pub(crate) use loom::sync::MutexGuard;

    /// A lock.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Where holders of a lock wait for one another.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        /// Gives the lock up, and has it again when told.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(feature = "tsan")]
mod lock {
    pub(crate) use parking_lot::{Mutex, MutexGuard};

    /// Where holders of a lock wait for one another.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Gives the lock up, and has it again when told, or for no reason.
        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
