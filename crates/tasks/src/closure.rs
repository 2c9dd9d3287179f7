// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closures of any type in a room of one size: those that are small lie there
//! themselves, others in a box. Most tasks have a pointer or two, and memory for each
//! would cost them more than anything else about them.

use std::alloc::{Layout, alloc};
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use crate::job::{JobRef, Kind};
use crate::tokens::run;
use crate::worker::Worker;

/// Room for a closure of 24 bytes, aligned to 8: three pointers.
pub(crate) type Room = MaybeUninit<[u64; 3]>;

/// What tasks have in common that do closures of one type: the kind of their jobs, and
/// what can be done with the closure where it lies.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ClosureKind {
    pub kind: Kind,
    /// Calls it, after which it is no more.
    call: unsafe fn(*mut Room),
    /// Drops it.
    discard: unsafe fn(*mut Room),
}

/// Of no closure.
pub(crate) static NO_CLOSURE: ClosureKind = ClosureKind {
    kind: Kind { run: run::<false> },
    call: nothing,
    discard: nothing,
};

/// # Safety
/// None is needed.
unsafe fn nothing(_: *mut Room) {}

/// # Safety
/// Such a closure lies there, and nobody uses it after that.
unsafe fn call<F: FnOnce()>(room: *mut Room) {
    // SAFETY: the caller's promise.
    unsafe { room.cast::<F>().read()() };
}

/// # Safety
/// As for [`call`].
unsafe fn discard<F>(room: *mut Room) {
    // SAFETY: the caller's promise.
    unsafe { room.cast::<F>().drop_in_place() };
}

struct Of<F>(F);

impl<F: FnOnce()> Of<F> {
    const HINTED: ClosureKind = Self::kind(run::<false>);
    const GUESSED: ClosureKind = Self::kind(run::<true>);

    const fn kind(run: unsafe fn(JobRef, &Worker<'_>)) -> ClosureKind {
        ClosureKind {
            kind: Kind { run },
            call: call::<F>,
            discard: discard::<F>,
        }
    }
}

/// Whether a closure can lie in a room.
const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Room>() && align_of::<F>() <= align_of::<Room>()
}

/// A closure that is called once, or dropped.
#[derive(Debug)]
pub(crate) struct Closure {
    kind: &'static ClosureKind,
    room: Room,
}

// SAFETY: it is made of closures that may be sent.
unsafe impl Send for Closure {}

impl Closure {
    /// For a task whose groups are a guess or not. `None`: there is no memory for it.
    pub fn new<F: FnOnce() + Send + 'static>(closure: F, is_guessed: bool) -> Option<Self> {
        if fits::<F>() {
            return Some(Self::small(closure, is_guessed));
        }
        let boxed = try_box(closure)?;
        Some(Self::small(boxed, is_guessed))
    }

    fn small<F: FnOnce() + Send + 'static>(closure: F, is_guessed: bool) -> Self {
        assert!(fits::<F>());
        let mut room = Room::uninit();
        // SAFETY: it has its size and alignment, and is nobody else's.
        unsafe { room.as_mut_ptr().cast::<F>().write(closure) };
        let kind = match is_guessed {
            true => &Of::<F>::GUESSED,
            false => &Of::<F>::HINTED,
        };
        Self { kind, room }
    }

    pub fn call(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it lies there, and nobody drops it.
        unsafe { (this.kind.call)(&raw mut this.room) };
    }

    /// It from now on: whoever has these makes it again, or it is neither called nor
    /// dropped.
    pub fn into_parts(self) -> (&'static ClosureKind, Room) {
        let parts = (self.kind, self.room);
        mem::forget(self);
        parts
    }

    /// # Safety
    /// These came from [`Self::into_parts`], and are used once; or the kind is
    /// [`NO_CLOSURE`].
    pub unsafe fn from_parts(kind: &'static ClosureKind, room: Room) -> Self {
        Self { kind, room }
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        // SAFETY: it lies there, and has not been called.
        unsafe { (self.kind.discard)(&raw mut self.room) };
    }
}

/// As `Box::new`, which cannot say that there is no memory.
fn try_box<T>(value: T) -> Option<Box<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        // Takes none.
        return Some(Box::new(value));
    }
    // SAFETY: the size is not 0.
    let place = NonNull::new(unsafe { alloc(layout) })?.cast::<T>();
    // SAFETY: as large as the value and aligned as it is to be; from the allocator
    // that boxes give it back to.
    unsafe {
        place.write(value);
        Some(Box::from_raw(place.as_ptr()))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Whether a closure that owns that is called or dropped once, and frees it once.
    fn is_used_once<T: Send + Sync + 'static>(owned: T) {
        let owned = Arc::new(owned);
        for is_called in [true, false] {
            let (inner, told) = (Arc::clone(&owned), Arc::new(()));
            let tell = Arc::clone(&told);
            let Some(closure) = Closure::new(move || drop((inner, tell)), is_called) else {
                panic!("no memory")
            };
            assert_eq!(Arc::strong_count(&told), 2);
            match is_called {
                true => closure.call(),
                false => drop(closure),
            }
            assert_eq!(
                (Arc::strong_count(&told), Arc::strong_count(&owned)),
                (1, 1)
            );
        }
    }

    #[repr(align(64))]
    struct Aligned(u8);

    fn takes_no_memory<F: FnOnce()>(_: F) -> bool {
        fits::<F>()
    }

    #[test]
    fn closures_of_all_sizes_are_used_once() {
        is_used_once(());
        is_used_once([7_u64; 100]);
        let (large, aligned) = ([7_u64; 4], Aligned(7));
        let told = Arc::new(());
        let own = Arc::clone(&told);
        let body = move || {
            assert_eq!(large, [7; 4]);
            // All of it, not only what is looked at.
            let aligned = &aligned;
            assert!(aligned.0 == 7 && std::ptr::from_ref(aligned).addr() % 64 == 0);
            drop(own);
        };
        Closure::new(body, false).unwrap().call();
        assert_eq!(Arc::strong_count(&told), 1);
    }

    #[test]
    fn small_ones_take_no_memory() {
        let three = [1_u64; 3];
        assert!(takes_no_memory(|| ()));
        assert!(takes_no_memory(move || assert_eq!(three, [1; 3])));
        let four = [1_u64; 4];
        assert!(!takes_no_memory(move || assert_eq!(four, [1; 4])));
        let wide = 1_u128;
        assert!(!takes_no_memory(move || assert_eq!(wide, 1)));
    }
}
