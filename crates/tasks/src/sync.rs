// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synchronisation primitives. They are those of the standard library, or those of loom in tests
//! that explore all interleavings (feature `loom`). The lock-free modules use only these
//! primitives, with two exceptions: atomics that order no other accesses (`counters`, `guess`, the
//! groups of a job), and statics, which loom does not support.
//!
//! With the feature `tsan` the locks are those of parking_lot. The standard library is built
//! without the instrumentation of ThreadSanitizer, so ThreadSanitizer would not see that the
//! library's locks order accesses. parking_lot is compiled with the instrumentation. No lock is
//! poisoned by a panic, because no critical section leaves inconsistent data if it panics.

#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicIsize, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, fence,
};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicI32, AtomicIsize, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, fence,
};

/// Writes to an atomic variable through an exclusive reference, without an atomic operation.
pub(crate) trait StoreMut<T> {
    fn store_mut(&mut self, value: T);
}

macro_rules! store_mut {
    ($atomic:ty, $of:ty) => {
        impl StoreMut<$of> for $atomic {
            #[inline(always)]
            fn store_mut(&mut self, value: $of) {
                #[cfg(not(feature = "loom"))]
                let () = *self.get_mut() = value;
                #[cfg(feature = "loom")]
                self.with_mut(|place| *place = value);
            }
        }
    };
}

store_mut!(AtomicU8, u8);
store_mut!(AtomicU32, u32);
store_mut!(AtomicU64, u64);

#[cfg(not(feature = "loom"))]
pub(crate) use std::thread;

#[cfg(feature = "loom")]
pub(crate) use loom::thread;

#[cfg(not(feature = "loom"))]
pub(crate) use lock::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "loom")]
pub(crate) use explored::{Condvar, Mutex, MutexGuard};

/// A lock usable in a static.
pub(crate) use lock::Mutex as StaticMutex;

#[cfg(not(feature = "tsan"))]
#[cfg_attr(
    feature = "loom",
    expect(dead_code, reason = "the tests use only static data")
)]
mod lock {
    use std::sync::{self, PoisonError};

    pub(crate) use sync::MutexGuard;

    /// A lock without poisoning.
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

    /// A condition variable.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        /// Releases the lock and reacquires it after a notification or a spurious wake-up.
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

    /// A lock without poisoning.
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

    /// A condition variable.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        /// Releases the lock and reacquires it after a notification.
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

    /// A condition variable.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Releases the lock and reacquires it after a notification or a spurious wake-up.
        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
