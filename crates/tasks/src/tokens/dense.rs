// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks whose tokens are in a range that the program has declared (*dense tokens*).
//!
//! Problem: the shards of the module `tokens` find a task by a hash and a search, under a lock.
//! Programs whose tokens are the numbers of blocks or tiles need none of that.
//!
//! Idea: an array has one entry for each token of the range. The state of a token is one atomic
//! word, and the closure of its task is in a slot beside it. The results of all calls are equal to
//! those for other tokens.
//!
//! 1. The state of an unused token is 0. Resolutions before the registration are counted in the
//!    state (*early*).
//! 2. A registration first sets [`REGISTERED`], [`HELD`] and the number of missing resolutions by
//!    one atomic operation. Then it writes the slot, and clears `HELD`.
//! 3. A resolution of a registered task decrements the number. Resolutions may run while `HELD` is
//!    set.
//! 4. The task becomes ready when the number is 0 and `HELD` is clear. Either the last resolution or
//!    the end of the registration causes this state, so exactly one thread gets the job.
//! 5. The end of the task sets the state to 0.
//!
//! Only the thread that has set `HELD`, or the holder of the ready job, accesses a slot. A thread
//! that sets `HELD` calls no code of the program before it clears the flag, so other threads may
//! wait for it.
//!
//! **Ready and running tasks** are counted per block of 64 tokens, modulo the number of counters.
//! A counter that is not 0 counts once in [`Tokens::busy`]. `busy` is incremented before the counter
//! leaves 0, and decremented after the counter has returned to 0. `busy` is therefore 0 only if no
//! task is ready or running.
//!
//! **Cancellation** increments the *epoch*. A state contains the epoch in which the token was first
//! used. Tokens of an earlier epoch whose task is not ready count as unused from then on. The thread
//! that finds such a token first drops its task: the cancelling thread, which scans all tokens, or a
//! destructor that the cancelling thread calls, or another thread. A task is dropped after its token
//! was set to 0, so that the destructor may use the token again.
//!
//! All operations take constant time, except that a wait and a cancellation take time linear in the
//! length of the range, about 1 ms per million tokens. A token takes 64 bytes of address space. The
//! system allocates memory when a token is used for the first time, in pages of 512 states and of 73
//! slots. The range has at most 2^32 tokens.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::{FallibleList, Tokens};
use crate::closure::{Closure, ClosureStorage, ClosureVtable};
use crate::dispatch::Groups;
use crate::error::{RuntimeError, TaskError, discard};
use crate::job::{Job, JobRef};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, thread};

/// Maximum number of tokens in the range.
const DENSE_TOKENS_MAX: u64 = 1 << 32;

/// The task is registered. The lowest 32 bits of the state are the number of missing resolutions;
/// without this flag, the number of resolutions up to now.
const REGISTERED: u64 = 1 << 32;
/// A thread accesses the slot.
const HELD: u64 = 1 << 33;
/// The bits of the number.
const NUMBER: u64 = u32::MAX as u64;
/// Position of the epoch in the state.
const EPOCH_SHIFT: u32 = 34;

/// Binary logarithm of the number of successive tokens that use one counter of active tasks, and the
/// number of counters.
const BLOCK_BITS: u32 = 6;
const COUNTERS: usize = if cfg!(feature = "loom") { 1 } else { 64 };

const fn number(state: u64) -> u32 {
    state as u32
}

const fn is_ready(state: u64) -> bool {
    state & REGISTERED != 0 && number(state) == 0
}

/// The task of a token.
#[repr(C)]
struct Slot {
    job: Job,
    /// Index of the token in the range.
    index: u32,
    /// The number of resolutions that the task requires. Wrong resolutions may read it at any time.
    count: AtomicU32,
    storage: ClosureStorage,
}

/// A counter in cache lines of its own.
#[repr(align(128))]
struct Counter(AtomicUsize);

/// The tokens of the declared range.
pub(super) struct DenseTokens {
    first: u64,
    states: Box<[AtomicU64]>,
    slots: Box<[UnsafeCell<MaybeUninit<Slot>>]>,
    /// The numbers of ready and running tasks.
    active: Box<[Counter]>,
    /// The number of cancellations, shifted to its position in a state.
    epoch: AtomicU64,
    /// Number of cancelled tokens that threads other than the cancelling thread have found.
    found_by_others: AtomicUsize,
}

// SAFETY: a slot is accessed only by the thread that has set `HELD` and by the holder of the job,
// and the closure in it is `Send`.
unsafe impl Sync for DenseTokens {}
// SAFETY: see above.
unsafe impl Send for DenseTokens {}

impl Default for DenseTokens {
    /// An empty range.
    fn default() -> Self {
        Self {
            first: 0,
            states: Box::default(),
            slots: Box::default(),
            active: Box::default(),
            epoch: AtomicU64::new(0),
            found_by_others: AtomicUsize::new(0),
        }
    }
}

/// Allocates states of unused tokens; `None` if there is no memory.
fn try_states(count: usize) -> Option<Box<[AtomicU64]>> {
    if cfg!(feature = "loom") {
        return Some((0..count).map(|_| AtomicU64::new(0)).collect());
    }
    let layout = Layout::array::<AtomicU64>(count).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the size of the layout is not 0. Pages of zeros need no memory until they are written.
    let states = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast::<AtomicU64>();
    let states = std::ptr::slice_from_raw_parts_mut(states.as_ptr(), count);
    // SAFETY: the memory has the layout of the slice and comes from the allocator of boxes. Without
    // the feature `loom`, zero bytes are a valid `AtomicU64`.
    Some(unsafe { Box::from_raw(states) })
}

impl DenseTokens {
    /// Creates the tokens of a range.
    ///
    /// # Errors
    /// If the range ends before it begins or is too long, or if there is no memory.
    pub fn try_new(range: Range<u64>) -> Result<Self, RuntimeError> {
        let (start, end) = (range.start, range.end);
        let tokens = end
            .checked_sub(start)
            .filter(|&tokens| tokens <= DENSE_TOKENS_MAX);
        let tokens = tokens.ok_or(RuntimeError::DenseTokens {
            start,
            end,
            max: DENSE_TOKENS_MAX,
        })?;
        if tokens == 0 {
            return Ok(Self::default());
        }
        let no_memory = || RuntimeError::DenseMemory { tokens };
        let count = usize::try_from(tokens).map_err(|_| no_memory())?;
        let states = try_states(count).ok_or_else(no_memory)?;
        let mut slots = Vec::new();
        slots.try_reserve_exact(count).map_err(|_| no_memory())?;
        // SAFETY: the memory for `count` elements is allocated, and a `MaybeUninit` needs no
        // initialisation.
        unsafe { slots.set_len(count) };
        let counter = || Counter(AtomicUsize::new(0));
        Ok(Self {
            first: start,
            states,
            slots: slots.into_boxed_slice(),
            active: std::iter::repeat_with(counter).take(COUNTERS).collect(),
            ..Self::default()
        })
    }

    /// Returns the index of a token in the range; `None` if the range does not contain the token.
    #[inline(always)]
    pub fn index_of(&self, token: u64) -> Option<usize> {
        let index = token.wrapping_sub(self.first);
        (index < self.states.len() as u64).then_some(index as usize)
    }

    /// Returns the index of a ready task; `None` if the task is not one of these tokens.
    #[inline(always)]
    pub fn index_of_job(&self, job: &JobRef) -> Option<usize> {
        let offset = job
            .as_ptr()
            .addr()
            .get()
            .wrapping_sub(self.slots.as_ptr().addr());
        if offset >= mem::size_of_val(&*self.slots) {
            return None;
        }
        let slot = job.as_ptr().cast::<Slot>();
        // SAFETY: the address is inside the slots, so the job is the first field of a slot, which
        // was written before the task became ready.
        Some(unsafe { (*slot.as_ptr()).index } as usize)
    }

    fn token(&self, index: usize) -> u64 {
        self.first + index as u64
    }

    fn slot(&self, index: usize) -> *mut Slot {
        self.slots[index].get().cast()
    }

    fn active(&self, index: usize) -> &AtomicUsize {
        &self.active[(index >> BLOCK_BITS) % COUNTERS].0
    }

    /// Returns whether a cancellation has removed the task or the resolutions of a token.
    #[inline(always)]
    fn is_cancelled(&self, state: u64) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        state != 0 && state >> EPOCH_SHIFT != epoch >> EPOCH_SHIFT && !is_ready(state)
    }

    /// Returns a state with the present epoch, if the token was unused.
    #[inline(always)]
    fn with_epoch(&self, before: u64, after: u64) -> u64 {
        match before {
            0 => after | self.epoch.load(Ordering::Relaxed),
            _ => after | (before >> EPOCH_SHIFT << EPOCH_SHIFT),
        }
    }

    /// Moves the closure of a task out of its slot.
    ///
    /// # Safety
    /// The slot was written, only the caller accesses it, and this function is called once per
    /// task.
    unsafe fn closure(&self, index: usize) -> Closure {
        let slot = self.slot(index);
        // SAFETY: the caller guarantees that the slot was written, and that only the caller accesses
        // it. The vtable of a task is a static value of type `ClosureVtable`.
        unsafe {
            let vtable = (*slot).job.vtable().cast::<ClosureVtable>().as_ref();
            Closure::from_parts(vtable, (*slot).storage)
        }
    }

    /// Counts a task as ready, and returns its job.
    ///
    /// # Safety
    /// The caller has made the task ready.
    unsafe fn activate(&self, busy: &AtomicUsize, index: usize) -> JobRef {
        let active = self.active(index);
        let mut before = active.load(Ordering::Relaxed);
        let mut is_counted = false;
        loop {
            if before == 0 && !is_counted {
                busy.fetch_add(1, Ordering::Relaxed);
                is_counted = true;
            }
            let after = before + 1;
            match active.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(other) => before = other,
            }
        }
        if is_counted && before > 0 {
            // Another thread has counted the block, too. This is not the last decrement, because the
            // counter includes this task.
            busy.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: the slot was written before the task became ready, and the caller has made it
        // ready, so the returned reference is the only holder.
        unsafe { JobRef::new(NonNull::new_unchecked(self.slot(index).cast())) }
    }

    /// Removes a cancelled token, if no other thread does. Returns the closure of its task; `None`
    /// if the token had only resolutions. `Err` means that the state has changed.
    fn remove_cancelled(&self, index: usize, state: u64) -> Result<Option<Closure>, ()> {
        let place = &self.states[index];
        if state & HELD != 0 {
            return Err(());
        }
        let is_registered = state & REGISTERED != 0;
        let next = if is_registered { state | HELD } else { 0 };
        place
            .compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(drop)?;
        if !is_registered {
            return Ok(None);
        }
        // SAFETY: the flag `HELD`, which this thread has set, excludes other threads, and resolutions
        // cannot make the task ready. The registration had written the slot.
        let closure = unsafe { self.closure(index) };
        // Other threads wait while `HELD` is set.
        place.swap(0, Ordering::AcqRel);
        Ok(Some(closure))
    }
}

impl Tokens {
    /// Sets the range of dense tokens, before the first use of any token.
    ///
    /// # Errors
    /// If the range is invalid, or if there is no memory.
    pub fn set_dense(&mut self, range: Range<u64>) -> Result<(), RuntimeError> {
        self.dense = DenseTokens::try_new(range)?;
        Ok(())
    }

    /// Returns the state of a token, after the removal of the token if `state` is cancelled.
    #[inline(always)]
    fn dense_state(&self, index: usize, mut state: u64) -> u64 {
        while self.dense.is_cancelled(state) {
            if self.drop_cancelled(index, state) {
                self.dense.found_by_others.fetch_add(1, Ordering::Relaxed);
            }
            state = self.dense.states[index].load(Ordering::Acquire);
        }
        state
    }

    /// Drops the task of a cancelled token. Returns whether this call has removed the token.
    #[cold]
    fn drop_cancelled(&self, index: usize, state: u64) -> bool {
        match self.dense.remove_cancelled(index, state) {
            Ok(Some(closure)) => {
                self.call(self.dense.token(index), false, || drop(closure));
                true
            }
            Ok(None) => true,
            Err(()) => {
                thread::yield_now();
                false
            }
        }
    }

    /// Registers a task as [`Self::register`] does.
    pub(super) fn register_dense(
        &self,
        index: usize,
        count: u32,
        groups: Groups,
        entry: Closure,
    ) -> Result<Option<JobRef>, TaskError> {
        let dense = &self.dense;
        let (place, token) = (&dense.states[index], dense.token(index));
        let mut state = place.load(Ordering::Acquire);
        loop {
            state = self.dense_state(index, state);
            if state & REGISTERED != 0 {
                return Err(TaskError::Registered { token });
            }
            let times = number(state);
            let left = count
                .checked_sub(times)
                .ok_or(TaskError::ResolvedTooOften {
                    token,
                    times,
                    count,
                })?;
            let next = dense.with_epoch(state, REGISTERED | HELD | u64::from(left));
            // The operation acquires the end of the token's last task, which has read the slot.
            match place.compare_exchange(state, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => state = other,
            }
        }
        let (vtable, storage) = entry.into_parts();
        let job = Job::new(NonNull::from(vtable).cast(), groups);
        let slot = dense.slot(index);
        // SAFETY: this thread has set `HELD`, and the token had no task, so no other thread accesses
        // the slot, except for atomic loads of `count`. The fields have no destructors.
        unsafe {
            (&raw mut (*slot).job).write(job);
            (&raw mut (*slot).index).write(index as u32);
            AtomicU32::from_ptr((&raw mut (*slot).count).cast()).store(count, Ordering::Relaxed);
            (&raw mut (*slot).storage).write(storage);
        }
        let before = place.fetch_and(!HELD, Ordering::AcqRel);
        // SAFETY: the number was 0 when `HELD` was cleared, so this thread has made the task ready.
        Ok((number(before) == 0).then(|| unsafe { dense.activate(&self.busy, index) }))
    }

    /// Resolves one dependency as [`Self::resolve`] does.
    #[inline(always)]
    pub(super) fn resolve_dense(&self, index: usize) -> Result<Option<JobRef>, TaskError> {
        let place = &self.dense.states[index];
        let state = place.load(Ordering::Acquire);
        // A registered task of this epoch that is not ready, as in nearly all resolutions.
        let epoch = self.dense.epoch.load(Ordering::Relaxed);
        if state & REGISTERED != 0 && number(state) > 0 && (state ^ epoch) >> EPOCH_SHIFT == 0 {
            let next = state - 1;
            if place
                .compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                // SAFETY: if the number is 0 and `HELD` is clear, this resolution was the last one.
                return Ok((next & (HELD | NUMBER) == 0)
                    .then(|| unsafe { self.dense.activate(&self.busy, index) }));
            }
        }
        self.resolve_dense_slowly(index)
    }

    #[inline(never)]
    fn resolve_dense_slowly(&self, index: usize) -> Result<Option<JobRef>, TaskError> {
        let dense = &self.dense;
        let place = &dense.states[index];
        let mut state = place.load(Ordering::Acquire);
        loop {
            state = self.dense_state(index, state);
            let next = match state & REGISTERED != 0 {
                false if number(state) == u32::MAX => {
                    return Err(self.resolved_too_often(index, u32::MAX));
                }
                false => dense.with_epoch(state, u64::from(number(state) + 1)),
                true if number(state) > 0 => state - 1,
                true if state & HELD != 0 => {
                    thread::yield_now();
                    state = place.load(Ordering::Acquire);
                    continue;
                }
                true => {
                    // SAFETY: the slot of a ready task was written. The field is only accessed by
                    // atomic operations. If another registration writes it meanwhile, the state has
                    // changed.
                    let count = unsafe {
                        let count = (&raw mut (*dense.slot(index)).count).cast();
                        AtomicU32::from_ptr(count).load(Ordering::Relaxed)
                    };
                    let other = place.load(Ordering::Acquire);
                    if other != state {
                        state = other;
                        continue;
                    }
                    return Err(self.resolved_too_often(index, count));
                }
            };
            // A resolution releases the writes of its thread. The last one acquires those of all
            // resolutions and of the registration.
            let result = place.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire);
            if let Err(other) = result {
                state = other;
                continue;
            }
            let is_last = is_ready(next) && next & HELD == 0;
            // SAFETY: this resolution was the last one, so this thread has made the task ready.
            return Ok(is_last.then(|| unsafe { dense.activate(&self.busy, index) }));
        }
    }

    #[cold]
    fn resolved_too_often(&self, index: usize, count: u32) -> TaskError {
        TaskError::ResolvedTooOften {
            token: self.dense.token(index),
            times: count.saturating_add(1),
            count,
        }
    }

    /// Moves the closure out of a ready task. Returns it with the token.
    ///
    /// # Safety
    /// The caller holds the ready task, and calls this function once.
    pub(super) unsafe fn take_dense(&self, index: usize) -> (u64, Closure) {
        // SAFETY: the caller holds the ready task, so only the caller accesses the slot.
        (self.dense.token(index), unsafe {
            self.dense.closure(index)
        })
    }

    /// Ends a task that has run.
    pub(super) fn end_dense(&self, index: usize) {
        self.dense.states[index].store(0, Ordering::Release);
        let is_last_of_block = self.dense.active(index).fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last_of_block && self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.notify_idle();
        }
    }

    /// Adds the unfinished tasks to the lists of a wait.
    pub(super) fn list_dense(
        &self,
        unresolved: &mut FallibleList<(u64, u32)>,
        unregistered: &mut FallibleList<u64>,
    ) {
        for index in 0..self.dense.states.len() {
            let state = self.dense.states[index].load(Ordering::Acquire);
            if state == 0 {
                continue;
            }
            let state = self.dense_state(index, state);
            let token = self.dense.token(index);
            match (state & REGISTERED != 0, number(state)) {
                (_, 0) => {}
                (true, more) => unresolved.push((token, more)),
                (false, _) => unregistered.push(token),
            }
        }
    }

    /// Begins a cancellation: from now on, the present tasks that are not ready count as removed.
    pub(super) fn begin_cancel_dense(&self) {
        self.dense
            .epoch
            .fetch_add(1 << EPOCH_SHIFT, Ordering::AcqRel);
    }

    /// Drops the cancelled tasks. Returns their number, with those that other threads have dropped.
    pub(super) fn drop_cancelled_dense(&self) -> usize {
        let mut count = 0;
        for (index, place) in self.dense.states.iter().enumerate() {
            let mut state = place.load(Ordering::Acquire);
            while self.dense.is_cancelled(state) {
                count += usize::from(self.drop_cancelled(index, state));
                state = place.load(Ordering::Acquire);
            }
        }
        count + self.dense.found_by_others.swap(0, Ordering::Relaxed)
    }

    /// Drops the remaining tasks. No workers exist any more, so even ready tasks cannot run.
    pub(super) fn drop_dense(&mut self) {
        for index in 0..self.dense.states.len() {
            let state = self.dense.states[index].load(Ordering::Acquire);
            if state & REGISTERED == 0 {
                continue;
            }
            // SAFETY: the task is registered and no thread runs it any more, and no other thread
            // accesses the tokens.
            let closure = unsafe { self.dense.closure(index) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
                discard(panic);
            }
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings;
