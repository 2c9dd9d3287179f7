// SPDX-License-Identifier: MIT OR Apache-2.0
//! Worker threads. A worker repeats three steps until the runtime closes:
//!
//! 1. Find a ready task: in the worker's own inbox and queues, then in its own steal slots, then in
//!    the steal slots of other workers, among the injected tasks, and in the inboxes of other
//!    workers. With a global queue, the policy's queue selects the task.
//! 2. Run the task and the chain of tasks that it makes ready. Before each task, publish queued
//!    tasks if other workers need tasks.
//! 3. If no task is found in 200 attempts ([`SPINS`]), sleep until another thread makes a task
//!    visible.
//!
//! Newly ready tasks run first, so other tasks could starve. After every 64 tasks
//! ([`CHECK_INTERVAL`]) a worker therefore checks for injected tasks, and at every 16th check it
//! runs the task that has waited longest. A search for a task visits each other worker at most
//! three times. A sleep has no time limit.
//!
//! The structure follows rayon-core's `registry.rs` (`Registry`, `WorkerThread::find_work`). The
//! submodule `registry` has the state that the workers share; `share` publishes tasks for other
//! workers and steals their tasks; `wait` and `forks` run other tasks while a task waits; `idle`
//! searches for tasks and sleeps; `running` limits the number of running workers.

mod forks;
mod futures;
mod idle;
mod registry;
mod running;
mod share;
mod stacked_tasks;
mod wait;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;
use std::{iter, mem, process};

use registry::{NO_OWNER, WorkerShared, lock};
use stacked_tasks::StackedTasks;

pub(crate) use registry::Registry;

use crate::counters::AtomicWorkerCounters;
use crate::dispatch::Groups;
use crate::guess::SAMPLE;
use crate::job::{Chain, JobRef};
use crate::pool::LocalQueues;
use crate::region::Region;
use crate::sleep::SleepFor;
use crate::stack_pointer::stack_pointer;
use crate::sync::Ordering;
use crate::tokens::Tokens;
use crate::trace::SpanGuard;

/// Number of attempts to find a task before a worker goes to sleep.
const SPINS: u32 = 200;
/// Maximum number of nested waits on a worker's stack in which the worker runs any task that it
/// finds. In a deeper wait the worker runs only the tasks for which it waits, so that the nesting
/// in the program bounds the depth of the stack.
const NESTED_WAITS_MAX: usize = 16;
/// Bytes of the stack for each nested wait. A stack of fewer than 16 times this size has a lower
/// limit of nested waits.
const STACK_BYTES_PER_WAIT: usize = 128 << 10;
/// Number of tasks that a worker takes from its own queues between two checks for injected tasks.
/// Without the check, injected tasks would starve while each task makes another task ready.
const CHECK_INTERVAL: u32 = 64;
/// At every check with a number divisible by this constant, a worker runs the task that has waited
/// longest in its own queues, so that no queued task starves.
const AGE_INTERVAL: u32 = 16;
/// The data that all jobs of one type share. The vtable may be the first field of a larger
/// structure, which `run` accesses by a cast: the vtable of a graph's jobs is the first field of
/// the graph.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct JobVtable {
    /// Runs a job of this type, and possibly other jobs that it makes ready.
    pub run: unsafe fn(JobRef, &Worker<'_>),
}

/// Aborts the process if a panic unwinds past the code that catches the panics of tasks.
pub(crate) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!(
            "usher-tasks: aborting, because a panic was not caught by the code that catches \
             panics of tasks"
        );
        process::abort();
    }
}

/// A worker, used only by its own thread.
pub(crate) struct Worker<'a> {
    registry: &'a Registry,
    shared: &'a WorkerShared,
    index: usize,
    /// Ready tasks that became ready during the innermost nested wait on this worker's stack.
    /// Without a nested wait, all ready tasks of this worker.
    local_queues: RefCell<LocalQueues<JobRef>>,
    /// The queues that were in use before each nested wait began, outermost first.
    outer_queues: RefCell<Vec<LocalQueues<JobRef>>>,
    /// Empty queues, kept for later waits.
    spare_queues: RefCell<Vec<LocalQueues<JobRef>>>,
    /// Number of nested waits on this worker's stack. The next field is the maximum number up to
    /// which a wait runs any task that it finds.
    wait_depth: Cell<usize>,
    wait_depth_max: usize,
    /// The nesting level of the running task. Used only by policies with a global queue.
    level: Cell<usize>,
    /// Number of checks for overdue tasks up to now.
    checks: Cell<u32>,
    /// Whether a task of this worker waits for another runtime, or runs a single other task, which
    /// counts as no nested wait.
    waits_across: Cell<bool>,
    /// Whether more workers run than the limit permits, so that this worker sleeps.
    is_surplus: Cell<bool>,
    /// Whether this worker counts as searching.
    is_searching: Cell<bool>,
    /// Whether other workers exist and may steal from this worker.
    allows_stealing: Cell<bool>,
    /// The isolate region of the running task, and whether there is one.
    region: RefCell<Option<Arc<Region>>>,
    is_isolated: Cell<bool>,
    /// The number of outer queues when the worker entered the outermost region.
    region_queues: Cell<usize>,
    /// The number of outer queues in the outermost deep wait for a graph; `usize::MAX` without one.
    deep_queues: Cell<usize>,
    /// Whether the overflow slot was filled since the worker last emptied it.
    overflow_used: Cell<bool>,
    /// Whether a task has made a task with high priority ready since the last check for overdue tasks.
    has_published_high_priority: Cell<bool>,
    /// The time of the last steal. `None` if [`share::STEAL_BACKOFF`] has passed since then.
    last_steal: Cell<Option<Instant>>,
    /// Number of tasks with guessed groups that have run since the last such task was timed.
    since_sample: Cell<u64>,
    /// The tasks with futures on the stack.
    stacked: StackedTasks,
    /// The size of the stack, and an address near its base.
    stack_bytes: usize,
    stack_base: Cell<usize>,
}

impl<'a> Worker<'a> {
    pub fn new(registry: &'a Registry, index: usize, stack_bytes: usize) -> Self {
        let shared = &registry.worker_shared[index];
        shared.until_check.store(CHECK_INTERVAL, Ordering::Relaxed);
        Self {
            registry,
            shared,
            index,
            local_queues: RefCell::new(LocalQueues::new()),
            outer_queues: RefCell::default(),
            spare_queues: RefCell::default(),
            wait_depth: Cell::new(0),
            wait_depth_max: (stack_bytes / STACK_BYTES_PER_WAIT).min(NESTED_WAITS_MAX),
            level: Cell::new(0),
            checks: Cell::new(0),
            waits_across: Cell::new(false),
            is_surplus: Cell::new(false),
            is_searching: Cell::new(true),
            allows_stealing: Cell::new(registry.workers_steal()),
            region: RefCell::new(None),
            is_isolated: Cell::new(false),
            region_queues: Cell::new(0),
            deep_queues: Cell::new(usize::MAX),
            overflow_used: Cell::new(false),
            has_published_high_priority: Cell::new(false),
            last_steal: Cell::new(None),
            since_sample: Cell::new(0),
            stacked: StackedTasks::default(),
            stack_bytes,
            stack_base: Cell::new(0),
        }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn registry(&self) -> &'a Registry {
        self.registry
    }

    /// Returns the lowest level of the tasks that this worker may run next.
    fn min_level(&self) -> usize {
        self.shared.min_level.load(Ordering::Relaxed)
    }

    /// Returns whether this is the only worker of the runtime. In that case, data that only tasks
    /// access need no atomic operations.
    #[inline]
    pub fn is_only_worker(&self) -> bool {
        self.registry.workers() == 1
    }

    /// Runs a registered task with guessed groups, and times one of [`SAMPLE`] such tasks. If a
    /// timed task has run other tasks during a wait, its time is discarded, because it includes the
    /// times of those tasks.
    pub fn run_sampled(&self, run: impl FnOnce()) {
        let since_sample = self.since_sample.get() + 1;
        if since_sample < SAMPLE {
            self.since_sample.set(since_sample);
            return run();
        }
        self.since_sample.set(0);
        let before = self.counts().tasks_and_forks();
        let begun = Instant::now();
        run();
        let ns = begun.elapsed().as_nanos();
        if self.counts().tasks_and_forks() == before {
            self.registry
                .guess
                .record(u64::try_from(ns).unwrap_or(u64::MAX));
        }
    }

    /// Returns the tasks by token and the submitted tasks.
    pub fn tokens(&self) -> &Tokens {
        &self.registry.tokens
    }

    /// Runs tasks until the runtime closes and no task can become ready any more.
    pub fn main_loop(&self) {
        self.registry.sleepers.register_thread(self.index);
        // SAFETY: `gettid` has no preconditions.
        let thread_id = unsafe { libc::gettid() };
        self.shared.thread_id.store(thread_id, Ordering::Relaxed);
        let registry = self.registry;
        self.stack_base.set(stack_pointer());
        registry.active_workers.begin();
        loop {
            // The flag is read before the search for tasks. A search after the close finds all
            // tasks that were ready before the close.
            let is_closing = registry.is_closing();
            self.run_while(|| !self.is_surplus.get());
            if self.is_surplus.take() {
                self.sleep_as_surplus();
            } else if !is_closing {
                let has_work = || self.sees_work() || registry.is_closing();
                self.sleep(SleepFor::AnyTask, has_work);
            } else if !self.sees_work() && self.sleep_or_terminate() {
                self.end_search();
                return;
            }
        }
    }

    /// Wakes the nearest worker that sleeps for any task, if the limit of running workers permits.
    /// The caller has made a task visible before.
    fn wake_near(&self) -> bool {
        let registry = self.registry;
        registry.sleepers.wake_one(registry.near(self.index))
    }

    #[inline]
    fn counts(&self) -> &AtomicWorkerCounters {
        &self.shared.counts
    }

    /// Counts a task that this worker is about to run.
    #[inline]
    pub fn count_task(&self) {
        self.counts().tasks.add(1);
    }

    /// Counts a function of `join` that this worker is about to run as a task.
    #[inline]
    pub fn count_fork(&self) {
        self.counts().forks.add(1);
    }

    /// Returns whether tracing is on.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.registry.tracer.is_on()
    }

    /// Calls the body of a task and records the span of the task if tracing is on. The span is
    /// complete before any other thread can observe that the task has run.
    #[inline]
    pub fn trace(&self, task: u64, groups: Groups, body: impl FnOnce()) {
        match self.registry.tracer.for_worker(self.index) {
            // The drop of the guard writes the span, also if the body panics.
            Some(buffer) => within(SpanGuard::begin(buffer, task, groups), body),
            None => body(),
        }
    }

    /// Publishes queued tasks if needed, and runs a task and the chain of tasks that it makes
    /// ready.
    fn run(&self, job: JobRef) {
        self.end_search();
        self.share();
        // A panic must not unwind the stack, because another worker may be using a forked task in a
        // lower stack frame.
        let unwinding = AbortOnUnwind;
        // SAFETY: `run` comes from the job's own vtable, so it belongs to jobs of this type. The
        // job exists, because it has not run, and this call passes on its only reference.
        unsafe {
            let run = job.vtable().cast::<JobVtable>().as_ref().run;
            run(job, self);
        }
        mem::forget(unwinding);
    }

    /// Returns whether a task that this worker makes ready may have to be sent to another worker or
    /// to a global queue. `has_s` states whether the task's graph has tasks with spatial groups.
    #[inline]
    pub fn may_redirect(&self, has_s: bool) -> bool {
        (has_s && self.allows_stealing()) || self.registry.global_queue.is_some()
    }

    /// Enqueues a task that was made ready on this worker and stays on it.
    pub fn push(&self, job: JobRef) {
        self.local_queues.borrow_mut().push(job);
    }

    /// Enqueues a task without dependencies, of a graph that a task of this worker runs.
    pub fn ready_nested_source(&self, job: JobRef) {
        let is_own = self.is_deep() && self.registry.global_queue.is_none();
        match is_own || self.is_isolated() {
            // In a deep wait, the worker reads no inbox, including its own. The task is therefore
            // added to the worker's queues directly.
            true => self.push(job),
            false => self.ready(job),
        }
    }

    /// Enqueues a task that was made ready on this worker, in the queue that the policy selects.
    pub fn ready(&self, job: JobRef) {
        let registry = self.registry;
        if self.is_isolated() {
            return self.push(job);
        }
        if let Some(global_queue) = &registry.global_queue {
            let level = self.level.get();
            lock(global_queue).ready(level, job);
            return self.wake_for_level(level);
        }
        match self.other_owner(&job) {
            Some(owner) => {
                registry.worker_shared[owner].inbox.push(job);
                self.counts().sent.add(1);
                // If the owner does not sleep, a sleeping worker near the owner is woken and may
                // run the task instead.
                let order = iter::once(owner).chain(registry.near(owner));
                registry.sleepers.wake_one(order);
            }
            None => self.push(job),
        }
    }

    /// Returns the owner of the task's spatial group if the owner is another worker. If the group
    /// has no owner, this worker becomes its owner.
    fn other_owner(&self, job: &JobRef) -> Option<usize> {
        let s = job.groups().s;
        if s == 0 || !self.allows_stealing() {
            return None;
        }
        let owner = self.registry.owner(s);
        let own = self.index as u32;
        match owner.load(Ordering::Relaxed) {
            NO_OWNER => {
                owner.store(own, Ordering::Relaxed);
                None
            }
            now if now == own => None,
            other => Some(other as usize),
        }
    }

    /// Enqueues a task that was made ready on this worker as [`Self::ready`] does, if it may be sent to
    /// another worker, and otherwise in the queues of this worker.
    pub fn ready_in_queue(&self, job: JobRef, may_redirect: bool) {
        match self.may_redirect(may_redirect) {
            true => self.ready(job),
            false => self.push(job),
        }
    }

    /// Returns whether a task with high priority is in the queues of this worker.
    pub fn has_high_priority(&self) -> bool {
        self.local_queues.borrow().has_high_priority()
    }

    /// Returns whether this worker is in an isolate region.
    #[inline]
    pub fn is_isolated(&self) -> bool {
        self.is_isolated.get()
    }

    /// Returns whether the task may run on this worker next, before all queued tasks.
    pub fn may_run_next(&self, job: &JobRef) -> bool {
        self.registry.global_queue.is_none() && self.other_owner(job).is_none()
    }

    fn find_work(&self) -> Option<JobRef> {
        if self.is_isolated() {
            return self.local_queues.borrow_mut().pop();
        }
        if let Some(global_queue) = &self.registry.global_queue {
            if self.check_surplus() {
                return None;
            }
            let (level, dispatch) = lock(global_queue).next(self.index, self.min_level())?;
            self.level.set(level);
            self.counts().group_moves.add(dispatch.group_moved.into());
            return Some(dispatch.item);
        }
        self.drain_overflow();
        if self.count_until_check() {
            if self.check_surplus() {
                return None;
            }
            if let Some(job) = self.find_overdue() {
                return Some(job);
            }
        }
        let mut local_queues = self.local_queues.borrow_mut();
        if !self.shared.inbox.is_empty() && !self.is_nested() {
            local_queues.push_all(self.shared.inbox.take());
        }
        if let Some(job) = local_queues.pop() {
            return Some(job);
        }
        drop(local_queues);
        self.find_work_elsewhere()
    }

    /// Counts a task of a chain, which runs without a search for work. Returns whether the chain
    /// must end because other tasks are overdue.
    #[inline]
    pub fn chain_must_yield(&self) -> bool {
        self.count_until_check() && self.has_overdue()
    }

    /// Counts a task, and returns whether this worker must check for overdue tasks before it.
    #[inline]
    fn count_until_check(&self) -> bool {
        let until_check = &self.shared.until_check;
        // Another thread may store 1 between the two operations, and its value is lost. The observer
        // repeats the operation later; for injected tasks, the next regular check is soon enough.
        let left = until_check.load(Ordering::Relaxed) - 1;
        until_check.store(left, Ordering::Relaxed);
        left == 0
    }

    fn set_until_check(&self, tasks: u32) {
        self.shared.until_check.store(tasks, Ordering::Relaxed);
    }

    /// Returns whether tasks may be overdue: injected tasks, tasks in the inbox, a task with high
    /// priority that the running task has made ready, at every [`AGE_INTERVAL`]-th check queued tasks,
    /// or all tasks of a surplus worker. If there are none,
    /// the next interval begins.
    #[cold]
    fn has_overdue(&self) -> bool {
        let checks = self.checks.get().wrapping_add(1);
        let may_be_overdue = self.has_published_high_priority.take()
            || self.registry.running().is_above_limit()
            || self.registry.must_take_from_sleepers()
            || checks.is_multiple_of(AGE_INTERVAL)
            || !self.registry.injector.is_empty()
            || !self.shared.inbox.is_empty()
            || !self.shared.mailbox.is_empty();
        let is_overdue = may_be_overdue && !self.is_nested();
        match is_overdue {
            // The value 1 makes the next search check for overdue tasks.
            true => self.set_until_check(1),
            false => {
                self.set_until_check(CHECK_INTERVAL);
                self.checks.set(checks);
            }
        }
        is_overdue
    }

    /// Returns an injected task, or at every [`AGE_INTERVAL`]-th check the task that has waited
    /// longest in this worker's queues. Such tasks would otherwise starve while new tasks become
    /// ready.
    #[cold]
    fn find_overdue(&self) -> Option<JobRef> {
        self.set_until_check(CHECK_INTERVAL);
        if self.is_nested() {
            return None;
        }
        if let Some(job) = self.take_mail() {
            return Some(job);
        }
        self.take_from_sleepers();
        let checks = self.checks.get().wrapping_add(1);
        self.checks.set(checks);
        if checks.is_multiple_of(AGE_INTERVAL) {
            // The queues have their turn, too: tasks of the active group are published last.
            let is_turn_of_queues = (checks / AGE_INTERVAL).is_multiple_of(4);
            let published = match is_turn_of_queues {
                true => {
                    self.reclaim_oldest();
                    None
                }
                false => self.take_oldest_published(),
            };
            return published.or_else(|| self.local_queues.borrow_mut().pop_in_turn());
        }
        let mut chain = self.take_injected()?;
        self.take_ownership(&chain);
        let mut local_queues = self.local_queues.borrow_mut();
        // If the worker's queues are empty, the injected task need not precede other tasks. It is
        // queued like other tasks, so that its group becomes the active group. Neither does it
        // precede a task with high priority.
        let is_queued = local_queues.len() == 0
            || local_queues.has_high_priority()
            || chain.has_high_priority();
        let first = match is_queued {
            true => None,
            false => chain.pop(),
        };
        local_queues.push_all(chain);
        first.or_else(|| local_queues.pop())
    }

    /// Searches for a task in the mailbox, the own steal slots and inbox, then in those of other
    /// workers and among the injected tasks, then in the queues of outer waits.
    fn find_work_elsewhere(&self) -> Option<JobRef> {
        if let Some(job) = self.take_mail() {
            return Some(job);
        }
        let steal_slots = &self.shared.steal_slots;
        let overflow = || match self.is_deep() {
            true => None,
            false => steal_slots.take_overflow(),
        };
        if let Some(chain) = steal_slots.reclaim().or_else(overflow) {
            let mut local_queues = self.local_queues.borrow_mut();
            local_queues.requeue(chain);
            return local_queues.pop();
        }
        let mut chain = None;
        if !self.is_deep() {
            chain = some(self.shared.inbox.take());
            chain = chain.or_else(|| self.steal());
        }
        match chain {
            Some(chain) => {
                let mut local_queues = self.local_queues.borrow_mut();
                local_queues.push_all(chain);
                local_queues.pop()
            }
            None if self.is_deep() => None,
            None => {
                let mut outer_queues = self.outer_queues.borrow_mut();
                outer_queues.iter_mut().rev().find_map(LocalQueues::pop)
            }
        }
    }

    /// Returns whether any task is visible to this worker: visible to all workers, or in the
    /// mailbox of this worker.
    fn sees_work(&self) -> bool {
        !self.shared.mailbox.is_empty() || self.registry.sees_work()
    }
}

/// Calls a function while the guard exists.
#[inline(never)]
fn within(_guard: SpanGuard<'_>, function: impl FnOnce()) {
    function();
}

fn some(chain: Chain) -> Option<Chain> {
    (!chain.is_empty()).then_some(chain)
}
