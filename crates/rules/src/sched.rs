// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sched_ext scheduler on a simulated machine: the C source of the BPF programs, compiled for
//! this machine, and the part of the kernel that this source calls.
//!
//! [`HostSched`] is one instance: CPUs, tasks, dispatch queues and the scheduler's variables.
//! The caller provides time and events, and lets CPUs schedule when the scheduler requests it:
//!
//! ```no_run
//! # use usher_rules::sched::{HostSched, HostSettings, Task};
//! # let (places, task) = (vec![], Task::default());
//! let mut sched = HostSched::new(&places, &HostSettings::default(), 1);
//! let task = sched.new_task(&task);
//! sched.set_now(1_000);
//! sched.wake_new(task, 0);
//! while let Some(cpu) = sched.next_resched() {
//!     let running = sched.schedule(cpu);
//! }
//! ```
//!
//! Instances share nothing. The same calls give the same results. An instance has at most
//! [`CPUS_MAX`](crate::select_cpu::CPUS_MAX) CPUs, [`LLCS_MAX`](crate::select_cpu::LLCS_MAX) LLCs
//! and 256 soft seats. Times are in nanoseconds; vtime is CPU time over weight. A CPU or task that
//! does not exist panics. More than 256 seats, a task that is ended twice, a dispatch queue that
//! the scheduler has not created, or lack of memory abort the process. The callbacks take constant
//! time. The insertion of a task by vtime, and the search for a task that may run on a CPU, take
//! linear time in the waiting tasks.

mod placement;
mod realtime;
mod transitions;

use std::ptr::NonNull;

use crate::select_cpu::{CPU_WORDS, CpuWords, Place};

/// `struct settings`: settings that user space makes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSettings {
    /// Length of a slice.
    pub slice_ns: u64,
    /// Longest turn of an address space.
    pub turn_ns: u64,
    /// Largest lag, in virtual time.
    pub max_lag_ns: u64,
    /// 1: idle cores come before idle hardware threads of busy cores.
    pub smt: u32,
    /// 1: threads of an address space run one after another.
    pub aggregate: u32,
    /// Number of last-level caches of the machine.
    pub llcs: u32,
    /// Padding.
    pub unused: u32,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            slice_ns: 3_000_000,
            turn_ns: 24_000_000,
            max_lag_ns: 24_000_000,
            smt: 1,
            aggregate: 1,
            llcs: 1,
            unused: 0,
        }
    }
}

/// `struct variant`: the variant that is loaded.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostVariant {
    /// 1: one queue in FIFO order.
    pub fifo: u32,
    /// Number of classes of CPUs by capacity; 0 is the same as 1.
    pub classes: u32,
    /// Bitmask of the nodes for which the kernel keeps separate masks of idle CPUs; 0: the kernel
    /// keeps one mask for all nodes.
    pub nodes: u64,
    /// Number of words of a CPU set that contain CPUs; [`HostSched::with_variant`] sets this field.
    pub cpu_words: u64,
    /// 1: CPUs are isolated; [`HostSched::with_variant`] sets this field.
    pub isolates: u64,
}

/// `struct host_task`: initial state of a task.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Address space; 0: a kernel thread.
    pub mm: u64,
    /// Number of the task's cgroup, which may have a seat; 0: the task has no cgroup.
    pub cgroup: u64,
    /// CPU time that the task has used before; 0: the task is new.
    pub ran_ns: u64,
    /// Weight from the nice value: 100 at nice 0.
    pub weight: u32,
    /// CPU on which the task is forked.
    pub cpu: u32,
    /// Number of the task that forks this task, if `is_forked` is 1.
    pub parent: u32,
    /// 1: the task is forked now. 0: the task existed before the scheduler was loaded.
    pub is_forked: u32,
    /// 1: a kernel thread.
    pub is_kernel: u32,
    /// Nesting depth of `migrate_disable` for the task, including the level that BPF callbacks add.
    pub migration_disabled: u32,
    /// Allowed CPUs.
    pub cpus: CpuWords,
}

impl Default for Task {
    fn default() -> Self {
        Self {
            mm: 0x1000,
            cgroup: 0,
            ran_ns: 0,
            weight: 100,
            cpu: 0,
            parent: 0,
            is_forked: 0,
            is_kernel: 0,
            migration_disabled: 0,
            cpus: [u64::MAX; CPU_WORDS],
        }
    }
}

/// Number of a task. Numbers of ended tasks are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(u32);

impl TaskId {
    /// Returns the number, counted from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a cgroup that [`HostSched::new_cgroup`] has created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupId(u64);

impl CgroupId {
    /// Returns the number, for [`Task::cgroup`].
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Quota of CPU time of a cgroup (`cpu.max` and `cpu.max.burst`), in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Length of a period.
    pub period_us: u64,
    /// CPU time per period.
    pub quota_us: u64,
    /// CPU time that may be saved for later periods.
    pub burst_us: u64,
}

/// `struct host_task_state`: current state of a task.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskState {
    /// Virtual time, relative to the clock of `llc`.
    pub vtime: u64,
    /// Average length of a burst.
    pub burst_average_ns: u64,
    /// CPU time, up to the last time that the task's CPU scheduled.
    pub ran_ns: u64,
    /// CPU time that has not been charged to the task's virtual time yet.
    pub uncharged_ns: u64,
    /// Remaining time of the task's slice.
    pub slice_ns: u64,
    /// Virtual time minus the clock of `llc` when the task last ran or woke.
    pub lag_ns: i64,
    /// Current or last CPU.
    pub cpu: u32,
    /// LLC of the clock to which the virtual time refers.
    pub llc: u32,
    /// 1: the task is urgent.
    pub is_urgent: u32,
    /// Reason for the last dispatch of the task: `enum why`.
    pub why: u32,
    /// 1: the task waits in a dispatch queue.
    pub is_queued: u32,
    /// Factor of the task's weight by the shares of its cgroups; 65536: 1.
    pub factor: u32,
    /// Reason for `placed_llc`: `enum placement`.
    pub placed: u32,
    /// LLC in which the task last woke or started.
    pub placed_llc: u32,
    /// Capacity of the CPU, on a machine with several classes; else 0.
    pub capacity: u32,
    /// Padding.
    pub unused: u32,
}

/// `struct host_llc_state`: the run queues of an LLC.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LlcState {
    /// Minimum virtual time of the waiting tasks; it never decreases.
    pub clock: u64,
    /// Number of tasks that wait in the queues of address spaces.
    pub waiting: u32,
    /// Number of tasks that wait in the urgent queue.
    pub urgent: u32,
    /// Number of runnable tasks, by which new tasks are placed. Always 0 on a machine with one LLC.
    pub threads: u32,
    /// Padding.
    pub unused: u32,
}

/// `struct tally`: the scheduler's counters, summed over all CPUs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are those of struct tally in shared.h")]
pub struct HostTally {
    pub switches: u64,
    pub space_switches: u64,
    pub idle_cores: u64,
    pub idle_threads: u64,
    pub queued: u64,
    pub prolonged: u64,
    pub turns_kept: u64,
    pub stolen: u64,
    pub pulls: u64,
    pub moved: u64,
    pub soon: u64,
    pub preempted: u64,
    pub returned: u64,
    pub borrowed: u64,
}

/// Flag of a wake-up: the task is new.
const WAKE_FORK: u64 = 4;

#[repr(C)]
struct Instance {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn host_new(
        places: *const Place,
        cpus: u32,
        settings: *const HostSettings,
        variant: *const HostVariant,
        seed: u64,
    ) -> *mut Instance;
    fn host_free(host: *mut Instance);
    fn host_set_now(host: *mut Instance, now_ns: u64);
    fn host_new_task(host: *mut Instance, task: *const Task) -> u32;
    fn host_end_task(host: *mut Instance, id: u32);
    fn host_wake(host: *mut Instance, id: u32, by_cpu: u32, flags: u64);
    fn host_requeue(host: *mut Instance, id: u32);
    fn host_remove(host: *mut Instance, id: u32);
    fn host_set_cpus(host: *mut Instance, id: u32, cpus: *const CpuWords);
    fn host_set_migration_disabled(host: *mut Instance, id: u32, times: u32);
    fn host_new_cgroup(host: *mut Instance, parent: u64) -> u64;
    fn host_end_cgroup(host: *mut Instance, cgroup: u64);
    fn host_set_quota(
        host: *mut Instance,
        cgroup: u64,
        period_us: u64,
        quota_us: u64,
        burst_us: u64,
    );
    fn host_set_weight(host: *mut Instance, cgroup: u64, weight: u32, is_idle: bool);
    fn host_hide_quotas(host: *mut Instance);
    fn host_move(host: *mut Instance, id: u32, cgroup: u64);
    fn host_next_timer(host: *mut Instance) -> u64;
    fn host_run_timers(host: *mut Instance);
    fn host_set_online(host: *mut Instance, cpu: u32, online: bool);
    fn host_set_seat(host: *mut Instance, cgroup: u64, cpus: *const CpuWords);
    fn host_schedule(host: *mut Instance, cpu: u32) -> i32;
    fn host_next_resched(host: *const Instance) -> i32;
    fn host_yield(host: *mut Instance, cpu: u32);
    fn host_end_slice(host: *mut Instance, cpu: u32, at_ns: u64);
    fn host_tick(host: *mut Instance, cpu: u32);
    fn host_slice(host: *mut Instance, id: u32) -> u64;
    fn host_may_idle(host: *const Instance, id: u32) -> bool;
    fn host_any_idle(host: *const Instance) -> bool;
    fn host_read_task(host: *const Instance, id: u32, state: *mut TaskState);
    fn host_read_llc(host: *mut Instance, llc: u32, state: *mut LlcState);
    fn host_read_tally(host: *mut Instance, sum: *mut HostTally);
    fn host_lose_claims(host: *mut Instance, claims: u32);
    fn host_set_bypassed(host: *mut Instance, is_bypassed: bool);
    fn host_race(host: *mut Instance, races: u32, race_ns: u64) -> u32;
    fn host_take_iterations(host: *mut Instance) -> u64;
}

/// An instance of the scheduler on a simulated machine.
#[derive(Debug)]
pub struct HostSched {
    /// Pointer from `host_new`, valid until this value is dropped.
    host: NonNull<Instance>,
    cpus: u32,
    /// Number of task numbers that are in use or were used. Numbers of ended tasks are reused.
    tasks: u32,
}

// SAFETY: an instance contains no reference to another instance or to a thread. Each function of
// host.c enters the instance anew for the calling thread.
unsafe impl Send for HostSched {}

impl HostSched {
    /// Creates the scheduler on a machine with idle CPUs. CPU n has the place `places[n]` in the
    /// topology. `seed` seeds the random numbers of the instance.
    ///
    /// # Panics
    /// There are more CPUs or LLCs than the scheduler's tables hold.
    pub fn new(places: &[Place], settings: &HostSettings, seed: u64) -> Self {
        Self::with_variant(places, settings, HostVariant::default(), seed)
    }

    /// Creates the scheduler as [`Self::new`] does, but as a variant, or on a kernel with several
    /// masks of idle CPUs.
    ///
    /// # Panics
    /// There are more CPUs or LLCs than the scheduler's tables hold.
    pub fn with_variant(
        places: &[Place],
        settings: &HostSettings,
        variant: HostVariant,
        seed: u64,
    ) -> Self {
        assert!(places.len() <= crate::select_cpu::CPUS_MAX);
        assert!(settings.llcs as usize <= crate::select_cpu::LLCS_MAX);
        let cpus = places.len() as u32;
        let all = (0..places.len()).fold(0, |words, cpu| words | 1 << (cpu / 64));
        let places: Vec<Place> = places.iter().map(|p| p.with_word_masks(all)).collect();
        let variant = HostVariant {
            cpu_words: u64::from(cpus.div_ceil(64)),
            isolates: places
                .iter()
                .any(|place| place.known == crate::select_cpu::PLACE_ISOLATED)
                .into(),
            ..variant
        };
        // SAFETY: `places` has `cpus` elements of the layout of `struct place`, and the settings
        // and the variant have the layouts of the header. The instance keeps copies, and no
        // pointers.
        let host = unsafe { host_new(places.as_ptr(), cpus, settings, &variant, seed) };
        let Some(host) = NonNull::new(host) else {
            unreachable!("host_new fails if memory is exhausted");
        };
        Self {
            host,
            cpus,
            tasks: 0,
        }
    }

    fn checked(&self, cpu: usize) -> u32 {
        let cpu = cpu as u32;
        assert!(cpu < self.cpus, "CPU {cpu} does not exist");
        cpu
    }

    /// Returns the number of a task of this instance. The check accepts ended tasks, because the
    /// memory of a task is valid until the instance ends.
    fn number_of(&self, task: TaskId) -> u32 {
        assert!(task.0 < self.tasks, "task {} does not exist", task.0);
        task.0
    }

    /// Sets the simulated time.
    pub fn set_now(&mut self, now_ns: u64) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_set_now(self.host.as_ptr(), now_ns) }
    }

    /// Creates a task, which sleeps until it is woken.
    ///
    /// # Panics
    /// The parent `task.parent` does not exist.
    pub fn new_task(&mut self, task: &Task) -> TaskId {
        if task.is_forked != 0 {
            self.number_of(TaskId(task.parent));
        }
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task has the layout of `struct host_task` and is copied; its parent
        // exists.
        let id = unsafe { host_new_task(self.host.as_ptr(), task) };
        self.tasks = self.tasks.max(id + 1);
        TaskId(id)
    }

    /// Ends a task that neither runs nor waits. A task that has already ended aborts the process.
    pub fn end_task(&mut self, task: TaskId) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_end_task(self.host.as_ptr(), self.number_of(task)) }
    }

    /// Wakes a sleeping task. The waking call runs on `by_cpu`.
    pub fn wake(&mut self, task: TaskId, by_cpu: usize) {
        let by_cpu = self.checked(by_cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_wake(self.host.as_ptr(), self.number_of(task), by_cpu, 0) }
    }

    /// Wakes a new task for the first time. The waking call runs on `by_cpu`.
    pub fn wake_new(&mut self, task: TaskId, by_cpu: usize) {
        let by_cpu = self.checked(by_cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_wake(self.host.as_ptr(), self.number_of(task), by_cpu, WAKE_FORK) }
    }

    /// Enqueues a runnable task that does not run, because its CPU was taken away from it.
    pub fn requeue(&mut self, task: TaskId) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_requeue(self.host.as_ptr(), self.number_of(task)) }
    }

    /// Makes a task unrunnable. If it was running, its CPU has to schedule.
    pub fn remove(&mut self, task: TaskId) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_remove(self.host.as_ptr(), self.number_of(task)) }
    }

    /// Sets the CPUs that a task may run on. A task that runs on a CPU outside `cpus` continues
    /// there until it is removed.
    pub fn set_cpus(&mut self, task: TaskId, cpus: &CpuWords) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists, and `cpus` has the layout of `struct cpu_set` and is
        // copied.
        unsafe { host_set_cpus(self.host.as_ptr(), self.number_of(task), cpus) }
    }

    /// Sets the nesting depth of `migrate_disable` for a task.
    pub fn set_migration_disabled(&mut self, task: TaskId, times: u32) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_set_migration_disabled(self.host.as_ptr(), self.number_of(task), times) }
    }

    /// Creates a cgroup without a quota below `parent`, or below the root.
    pub fn new_cgroup(&mut self, parent: Option<CgroupId>) -> CgroupId {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; a cgroup exists until the instance ends.
        CgroupId(unsafe { host_new_cgroup(self.host.as_ptr(), parent.map_or(0, |id| id.0)) })
    }

    /// Removes a cgroup that has no tasks.
    pub fn end_cgroup(&mut self, cgroup: CgroupId) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the cgroup exists.
        unsafe { host_end_cgroup(self.host.as_ptr(), cgroup.0) }
    }

    /// Writes `cpu.max` and `cpu.max.burst` of a cgroup; `None` stands for `max`.
    pub fn set_quota(&mut self, cgroup: CgroupId, quota: Option<Quota>) {
        let (period_us, quota_us, burst_us) = match quota {
            Some(quota) => (quota.period_us, quota.quota_us, quota.burst_us),
            None => (100_000, u64::MAX, 0),
        };
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the cgroup exists.
        unsafe { host_set_quota(self.host.as_ptr(), cgroup.0, period_us, quota_us, burst_us) }
    }

    /// Writes `cpu.weight` and `cpu.idle` of a cgroup.
    pub fn set_weight(&mut self, cgroup: CgroupId, weight: u32, is_idle: bool) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the cgroup exists.
        unsafe { host_set_weight(self.host.as_ptr(), cgroup.0, weight, is_idle) }
    }

    /// From now on, the kernel does not report quotas, like Linux before 6.17.
    pub fn hide_quotas(&mut self) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_hide_quotas(self.host.as_ptr()) }
    }

    /// Moves a task to another cgroup.
    pub fn move_to(&mut self, task: TaskId, cgroup: CgroupId) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task and the cgroup exist.
        unsafe { host_move(self.host.as_ptr(), self.number_of(task), cgroup.0) }
    }

    /// Returns the time at which the scheduler's next timer expires; `u64::MAX`: no timer is armed.
    pub fn next_timer_ns(&mut self) -> u64 {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_next_timer(self.host.as_ptr()) }
    }

    /// Lets each timer expire that is due.
    pub fn run_timers(&mut self) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_run_timers(self.host.as_ptr()) }
    }

    /// Takes a CPU off line, or on line again. A task that runs there continues until it is
    /// removed.
    pub fn set_online(&mut self, cpu: usize, online: bool) {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_set_online(self.host.as_ptr(), cpu, online) }
    }

    /// Gives the tasks of a cgroup a soft seat, or changes the CPUs of their seat. A seat for more
    /// than 256 cgroups aborts the process.
    pub fn set_seat(&mut self, cgroup: u64, cpus: &CpuWords) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; `cpus` has the layout of `struct cpu_set` and is copied.
        unsafe { host_set_seat(self.host.as_ptr(), cgroup, cpus) }
    }

    /// Lets a CPU schedule. Returns the task that runs there afterwards.
    pub fn schedule(&mut self, cpu: usize) -> Option<TaskId> {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        let next = unsafe { host_schedule(self.host.as_ptr(), cpu) };
        u32::try_from(next).ok().map(TaskId)
    }

    /// Returns a CPU that has to schedule.
    pub fn next_resched(&self) -> Option<usize> {
        // SAFETY: the instance is valid until `self` is dropped, and is only read.
        let cpu = unsafe { host_next_resched(self.host.as_ptr()) };
        usize::try_from(cpu).ok()
    }

    /// Ends the slice of a CPU's running task at a time in the past, at which the task continued
    /// because no task waited. One call may end several consecutive slices; `at_ns` is the end of
    /// the last slice.
    pub fn end_slice(&mut self, cpu: usize, at_ns: u64) {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_end_slice(self.host.as_ptr(), cpu, at_ns) }
    }

    /// Ends the slice of a CPU's running task, as `sched_yield` does.
    pub fn yield_now(&mut self, cpu: usize) {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_yield(self.host.as_ptr(), cpu) }
    }

    /// Runs the tick of a CPU.
    pub fn tick(&mut self, cpu: usize) {
        let cpu = self.checked(cpu);
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_tick(self.host.as_ptr(), cpu) }
    }

    /// Returns the remaining time of a task's slice, as of the last time that the task's CPU
    /// scheduled.
    pub fn slice_ns(&mut self, task: TaskId) -> u64 {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively; the task exists.
        unsafe { host_slice(self.host.as_ptr(), self.number_of(task)) }
    }

    /// Returns whether any CPU on which the task may run is idle.
    pub fn has_idle_for(&self, task: TaskId) -> bool {
        // SAFETY: the instance is valid until `self` is dropped, and is only read; the task exists.
        unsafe { host_may_idle(self.host.as_ptr(), self.number_of(task)) }
    }

    /// Returns whether any CPU is idle.
    pub fn any_idle(&self) -> bool {
        // SAFETY: the instance is valid until `self` is dropped, and is only read.
        unsafe { host_any_idle(self.host.as_ptr()) }
    }

    /// Returns the state of a task.
    pub fn task(&self, task: TaskId) -> TaskState {
        let mut state = TaskState::default();
        // SAFETY: the instance is valid until `self` is dropped, and is only read; the task exists,
        // and `state` has the layout of `struct host_task_state`.
        unsafe { host_read_task(self.host.as_ptr(), self.number_of(task), &mut state) };
        state
    }

    /// Returns the run queues of an LLC.
    pub fn llc(&self, llc: usize) -> LlcState {
        let mut state = LlcState::default();
        // SAFETY: the instance is valid until `self` is dropped; the number of the LLC is taken
        // modulo the tables' size, and `state` has the layout of `struct host_llc_state`.
        unsafe { host_read_llc(self.host.as_ptr(), llc as u32, &mut state) };
        state
    }

    /// Returns the scheduler's counters.
    pub fn tally(&self) -> HostTally {
        let mut sum = HostTally::default();
        // SAFETY: the instance is valid until `self` is dropped, and `sum` has the layout of
        // `struct tally`.
        unsafe { host_read_tally(self.host.as_ptr(), &mut sum) };
        sum
    }

    /// Lets the next `claims` attempts of the scheduler to claim an idle CPU fail, as if another
    /// CPU had claimed it first.
    pub fn lose_claims(&mut self, claims: u32) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_lose_claims(self.host.as_ptr(), claims) }
    }

    /// Lets the kernel bypass the scheduler, as during a suspend. CPUs then become idle without a
    /// call of `update_idle`.
    pub fn set_bypassed(&mut self, is_bypassed: bool) {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_set_bypassed(self.host.as_ptr(), is_bypassed) }
    }

    /// Simulates races: at each of the next `races` compare-and-swaps of the vtime clock of LLC 0,
    /// another CPU advances the clock by `race_ns` between the load and the swap. Returns the
    /// number of races from the previous call that have not taken place.
    pub fn race(&mut self, races: u32, race_ns: u64) -> u32 {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_race(self.host.as_ptr(), races, race_ns) }
    }

    /// Returns the number of loop iterations in callbacks since the last call of this method.
    pub fn take_loop_iterations(&mut self) -> u64 {
        // SAFETY: the instance is valid until `self` is dropped, and `self` is borrowed
        // exclusively.
        unsafe { host_take_iterations(self.host.as_ptr()) }
    }
}

impl Drop for HostSched {
    fn drop(&mut self) {
        // SAFETY: the instance comes from `host_new`, and nothing uses the pointer after this call.
        unsafe { host_free(self.host.as_ptr()) }
    }
}
