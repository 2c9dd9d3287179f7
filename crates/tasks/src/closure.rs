// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closures of any type in storage of a fixed size. A closure of at most 24 bytes is stored inline,
//! a larger closure in a box. Most closures capture one or two pointers. For these closures, an
//! allocation would take more time than all other work of the runtime. All operations take constant
//! time, apart from the closure itself. Lack of memory for a box is reported as `None`.

use std::alloc::{Layout, alloc};
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use crate::job::JobRef;
use crate::tokens::run;
use crate::worker::{JobVtable, Worker};

/// Storage for a closure of at most 24 bytes (three pointers), aligned to 8.
pub(crate) type ClosureStorage = MaybeUninit<[u64; 3]>;

/// The functions that call and drop closures of one type, and the vtable of the jobs that run such
/// closures.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ClosureVtable {
    pub job: JobVtable,
    /// Calls and consumes the closure.
    call: unsafe fn(*mut ClosureStorage),
    /// Drops the closure.
    discard: unsafe fn(*mut ClosureStorage),
    /// Whether the task was submitted without a token.
    pub is_submitted: bool,
}

/// The vtable of a task that has no closure yet.
pub(crate) static NO_CLOSURE: ClosureVtable = ClosureVtable {
    job: JobVtable {
        run: run::<false, false>,
    },
    call: no_op,
    discard: no_op,
    is_submitted: false,
};

/// # Safety
/// None is needed.
unsafe fn no_op(_: *mut ClosureStorage) {}

/// # Safety
/// The storage holds a closure of type `F`, which is not used after this call.
unsafe fn call<F: FnOnce()>(storage: *mut ClosureStorage) {
    // SAFETY: the storage contains a closure of type `F` that is not used again, as the caller
    // guarantees.
    unsafe { storage.cast::<F>().read()() };
}

/// # Safety
/// The storage holds a value of type `F`, which is not used after this call.
unsafe fn discard<F>(storage: *mut ClosureStorage) {
    // SAFETY: the storage contains a value of type `F` that is not used again, as the caller
    // guarantees.
    unsafe { storage.cast::<F>().drop_in_place() };
}

struct VtableFor<F>(F);

impl<F: FnOnce()> VtableFor<F> {
    const HINTED: ClosureVtable = Self::vtable(run::<false, false>, false);
    const GUESSED: ClosureVtable = Self::vtable(run::<true, false>, false);
    const SUBMITTED_HINTED: ClosureVtable = Self::vtable(run::<false, true>, true);
    const SUBMITTED_GUESSED: ClosureVtable = Self::vtable(run::<true, true>, true);

    const fn vtable(run: unsafe fn(JobRef, &Worker<'_>), is_submitted: bool) -> ClosureVtable {
        ClosureVtable {
            job: JobVtable { run },
            call: call::<F>,
            discard: discard::<F>,
            is_submitted,
        }
    }
}

/// Returns whether a closure fits into the storage.
const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<ClosureStorage>() && align_of::<F>() <= align_of::<ClosureStorage>()
}

/// A closure that is called or dropped exactly once.
#[derive(Debug)]
pub(crate) struct Closure {
    vtable: &'static ClosureVtable,
    storage: ClosureStorage,
}

// SAFETY: `Closure::store` accepts only closures that are `Send`.
unsafe impl Send for Closure {}

impl Closure {
    /// Stores the closure of a task with a token. `is_guessed` states whether the runtime has
    /// guessed the groups of the task. Returns `None` if there is no memory.
    pub fn new<F: FnOnce() + Send + 'static>(closure: F, is_guessed: bool) -> Option<Self> {
        Self::store::<F, false>(closure, is_guessed)
    }

    /// Stores the closure of a submitted task as [`Self::new`] does.
    pub fn without_token<F: FnOnce() + Send + 'static>(
        closure: F,
        is_guessed: bool,
    ) -> Option<Self> {
        Self::store::<F, true>(closure, is_guessed)
    }

    fn store<F: FnOnce() + Send + 'static, const SUBMITTED: bool>(
        closure: F,
        is_guessed: bool,
    ) -> Option<Self> {
        if fits::<F>() {
            return Some(Self::small::<F, SUBMITTED>(closure, is_guessed));
        }
        let boxed = try_box(closure)?;
        Some(Self::small::<Box<F>, SUBMITTED>(boxed, is_guessed))
    }

    fn small<F: FnOnce() + Send + 'static, const SUBMITTED: bool>(
        closure: F,
        is_guessed: bool,
    ) -> Self {
        assert!(fits::<F>());
        let mut storage = ClosureStorage::uninit();
        // SAFETY: the storage has the size and alignment of the closure, as `fits` has checked, and
        // belongs to this function.
        unsafe { storage.as_mut_ptr().cast::<F>().write(closure) };
        let vtable = match (SUBMITTED, is_guessed) {
            (false, true) => &VtableFor::<F>::GUESSED,
            (false, false) => &VtableFor::<F>::HINTED,
            (true, true) => &VtableFor::<F>::SUBMITTED_GUESSED,
            (true, false) => &VtableFor::<F>::SUBMITTED_HINTED,
        };
        Self { vtable, storage }
    }

    pub fn call(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the storage holds the closure. `this` is not dropped, so the closure is consumed
        // only by this call.
        unsafe { (this.vtable.call)(&raw mut this.storage) };
    }

    /// Splits the closure into its vtable and its storage. If the two parts are not passed to
    /// [`Self::from_parts`], the closure is neither called nor dropped.
    pub fn into_parts(self) -> (&'static ClosureVtable, ClosureStorage) {
        let parts = (self.vtable, self.storage);
        mem::forget(self);
        parts
    }

    /// # Safety
    /// Both parts came from one call of [`Self::into_parts`] and are passed to this function once;
    /// or the vtable is [`NO_CLOSURE`].
    pub unsafe fn from_parts(vtable: &'static ClosureVtable, storage: ClosureStorage) -> Self {
        Self { vtable, storage }
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        // SAFETY: the storage holds the closure, because a call would have prevented this drop.
        unsafe { (self.vtable.discard)(&raw mut self.storage) };
    }
}

/// Stores a value in a box; `None` if there is no memory.
pub(crate) fn try_box<T>(value: T) -> Option<Box<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        // A box of a type of size 0 does not allocate memory.
        return Some(Box::new(value));
    }
    // SAFETY: the size of the layout is not 0, as checked above.
    let place = NonNull::new(unsafe { alloc(layout) })?.cast::<T>();
    // SAFETY: the memory has the size and alignment of the value, and comes from the allocator of
    // boxes.
    unsafe {
        place.write(value);
        Some(Box::from_raw(place.as_ptr()))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Checks that a closure with this value is called or dropped once, and that its memory is
    /// freed once.
    fn check_used_once<T: Send + Sync + 'static>(owned: T) {
        let owned = Arc::new(owned);
        for is_called in [true, false] {
            let (inner, alive) = (Arc::clone(&owned), Arc::new(()));
            let owned_too = Arc::clone(&alive);
            let Some(closure) = Closure::new(move || drop((inner, owned_too)), is_called) else {
                panic!("no memory")
            };
            assert_eq!(Arc::strong_count(&alive), 2);
            match is_called {
                true => closure.call(),
                false => drop(closure),
            }
            assert_eq!(
                (Arc::strong_count(&alive), Arc::strong_count(&owned)),
                (1, 1)
            );
        }
    }

    #[repr(align(64))]
    struct Aligned(u8);

    fn is_inline<F: FnOnce()>(_: F) -> bool {
        fits::<F>()
    }

    #[test]
    fn closures_of_all_sizes_are_used_once() {
        check_used_once(());
        check_used_once([7_u64; 100]);
        let (large, aligned) = ([7_u64; 4], Aligned(7));
        let alive = Arc::new(());
        let own = Arc::clone(&alive);
        let body = move || {
            assert_eq!(large, [7; 4]);
            // With this line, the closure captures the whole value; otherwise it would capture only
            // the field that it reads.
            let aligned = &aligned;
            assert!(aligned.0 == 7 && std::ptr::from_ref(aligned).addr() % 64 == 0);
            drop(own);
        };
        Closure::new(body, false).unwrap().call();
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn small_closures_need_no_allocation() {
        let three = [1_u64; 3];
        assert!(is_inline(|| ()));
        assert!(is_inline(move || assert_eq!(three, [1; 3])));
        let four = [1_u64; 4];
        assert!(!is_inline(move || assert_eq!(four, [1; 4])));
        let wide = 1_u128;
        assert!(!is_inline(move || assert_eq!(wide, 1)));
    }
}
