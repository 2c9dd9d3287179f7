// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler of Linux 2.4, which has one list of all runnable tasks. Every scheduling decision
//! walks the whole list.
//!
//! All runnable and running tasks are on one doubly linked list under one lock.
//!
//! - `schedule()` removes the previous task from the list if the task goes to sleep. It then walks
//!   the list and selects the task with the greatest *goodness*: the rest of the task's quantum
//!   (its time slice), plus a bonus if the task last ran on this CPU, plus a bonus if its address
//!   space is loaded. If no task has quantum left, all tasks get a new quantum. The time of a
//!   decision is proportional to the number of runnable tasks.
//! - A wakeup puts the task at the head of the list, and searches for a CPU that is idle or runs a
//!   task with lower goodness (`reschedule_idle()`).
//!
//! The code is generic in the storage of the task structures (trait [`Structures`]). It therefore
//! runs on a simulated machine, which counts the cost of each access to a structure, and also in
//! the memory of the host.
//!
//! One deviation from Linux: the lock is held while new quanta are assigned; Linux releases the
//! lock during this time.

/// Fields of a task structure. Each field is a word of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// State of the task: [`RUNNING`] or [`SLEEPING`].
    State,
    /// If not 0, the CPU of the task must call the scheduler.
    NeedResched,
    /// Remaining ticks of the quantum.
    Counter,
    /// Nice value, -20 to 19, as an `i32`.
    Nice,
    /// Number of the address space.
    AddressSpace,
    /// Whether the task runs on a CPU.
    HasCpu,
    /// The CPU on which the task runs or last ran.
    Processor,
    /// The next task on the list; 0: this task is not on the list.
    Next,
    /// The previous task on the list.
    Prev,
}

impl Field {
    /// Returns the offset of the field in the structure, which is that of Linux 2.4.4 for 32 bits.
    /// The fields that `goodness()` reads are at 0x20..=0x3f, in one cache line of the Pentium III.
    pub const fn offset_bytes(self) -> u32 {
        match self {
            Self::State => 0x00,
            Self::NeedResched => 0x14,
            Self::Counter => 0x20,
            Self::Nice => 0x24,
            Self::AddressSpace => 0x2c,
            Self::HasCpu => 0x30,
            Self::Processor => 0x34,
            Self::Next => 0x3c,
            Self::Prev => 0x40,
        }
    }
}

/// Size in bytes of the part of a structure that the scheduler uses.
pub const STRUCTURE_BYTES: usize = 128;
/// Size in bytes of the block that contains a structure and a kernel stack.
pub const BLOCK_BYTES: usize = 8192;

/// State of a runnable task.
pub const RUNNING: u32 = 0;
/// State of a waiting task.
pub const SLEEPING: u32 = 1;

/// Bonus in goodness on the CPU on which the task last ran (`PROC_CHANGE_PENALTY` on i386).
const SAME_CPU: i32 = 15;
/// Ticks of a new quantum at nice 0, with 100 ticks per second (`NICE_TO_TICKS`).
pub const QUANTUM_TICKS: u32 = 6;
/// A goodness that is lower than that of each task.
const GOODNESS_MIN: i32 = -1000;

/// Storage of the task structures and the list head. The implementation assigns a number other than
/// 0 to each task.
pub trait Structures {
    /// Returns the number of the list head, which has only the fields [`Field::Next`] and
    /// [`Field::Prev`].
    fn head(&self) -> u32;
    /// Returns the number of the task with the index `place` among all tasks; `None` if there is no
    /// such task.
    fn task(&self, place: usize) -> Option<u32>;
    /// Reads a field of a task.
    fn read(&mut self, task: u32, field: Field) -> u32;
    /// Writes a field of a task.
    fn write(&mut self, task: u32, field: Field, value: u32);
}

/// Returns the goodness of a task on a CPU on which the address space `space` is loaded.
#[inline(always)]
pub fn goodness<S: Structures>(s: &mut S, task: u32, cpu: u32, space: u32) -> i32 {
    let counter = s.read(task, Field::Counter) as i32;
    if counter == 0 {
        return 0;
    }
    let same_cpu = i32::from(s.read(task, Field::Processor) == cpu) * SAME_CPU;
    let same_space = i32::from(s.read(task, Field::AddressSpace) == space);
    counter + same_cpu + same_space + 20 - s.read(task, Field::Nice) as i32
}

/// Result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkResult {
    /// The task with the greatest goodness found so far.
    pub best: Option<u32>,
    /// Goodness of the task `best`.
    pub goodness: i32,
    /// Number of visited structures.
    pub visits: u32,
}

impl WalkResult {
    /// Result before the walk: no task found.
    pub const NONE: Self = Self {
        best: None,
        goodness: GOODNESS_MIN,
        visits: 0,
    };
}

/// Walks the whole list, and returns the task with the greatest goodness among `partial` and the
/// tasks that run on no CPU.
#[inline(always)]
pub fn walk<S: Structures>(s: &mut S, cpu: u32, space: u32, partial: WalkResult) -> WalkResult {
    let head = s.head();
    let mut walked = partial;
    let mut at = s.read(head, Field::Next);
    while at != head {
        if s.read(at, Field::HasCpu) == 0 {
            let goodness = goodness(s, at, cpu, space);
            if goodness > walked.goodness {
                walked.best = Some(at);
                walked.goodness = goodness;
            }
        }
        walked.visits += 1;
        at = s.read(at, Field::Next);
    }
    walked
}

/// Makes the list empty.
pub fn empty<S: Structures>(s: &mut S) {
    let head = s.head();
    s.write(head, Field::Next, head);
    s.write(head, Field::Prev, head);
}

/// Initialises the structure of a new task, which is not on the list yet.
pub fn create<S: Structures>(s: &mut S, task: u32, space: u32, cpu: u32) {
    s.write(task, Field::State, RUNNING);
    s.write(task, Field::NeedResched, 0);
    s.write(task, Field::Counter, QUANTUM_TICKS);
    s.write(task, Field::Nice, 0);
    s.write(task, Field::AddressSpace, space);
    s.write(task, Field::HasCpu, 0);
    s.write(task, Field::Processor, cpu);
    s.write(task, Field::Next, 0);
    s.write(task, Field::Prev, 0);
}

/// Puts a task at the head of the list.
pub fn add<S: Structures>(s: &mut S, task: u32) {
    let head = s.head();
    let first = s.read(head, Field::Next);
    s.write(task, Field::Next, first);
    s.write(task, Field::Prev, head);
    s.write(first, Field::Prev, task);
    s.write(head, Field::Next, task);
}

/// Removes a task from the list.
pub fn remove<S: Structures>(s: &mut S, task: u32) {
    let (next, prev) = (s.read(task, Field::Next), s.read(task, Field::Prev));
    s.write(next, Field::Prev, prev);
    s.write(prev, Field::Next, next);
    s.write(task, Field::Next, 0);
}

/// Result of a scheduling decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulingDecision {
    /// The next task; `None` if no task is runnable.
    pub next: Option<u32>,
    /// Number of visited structures.
    pub visits: u32,
    /// Whether all tasks got a new quantum.
    pub new_quanta: bool,
}

/// Selects the task that runs after `prev` on a CPU. The caller holds the lock. `walker` is
/// [`walk`] or a function that calls it.
pub fn schedule<S: Structures>(
    s: &mut S,
    cpu: u32,
    prev: Option<u32>,
    mut walker: impl FnMut(&mut S, u32, u32, WalkResult) -> WalkResult,
) -> SchedulingDecision {
    let runnable_prev = prev.filter(|&task| is_still_runnable(s, task));
    let space = prev.map_or(0, |task| s.read(task, Field::AddressSpace));
    let (mut visits, mut new_quanta) = (0, false);
    let found = loop {
        let partial = match runnable_prev {
            Some(task) => WalkResult {
                best: Some(task),
                goodness: goodness(s, task, cpu, space),
                visits: 0,
            },
            None => WalkResult::NONE,
        };
        let found = walker(s, cpu, space, partial);
        visits += found.visits;
        if found.goodness != 0 {
            break found;
        }
        refill_quanta(s);
        new_quanta = true;
    };
    if let Some(next) = found.best {
        s.write(next, Field::HasCpu, 1);
        s.write(next, Field::Processor, cpu);
    }
    if let Some(prev) = prev.filter(|_| prev != found.best) {
        s.write(prev, Field::HasCpu, 0);
    }
    SchedulingDecision {
        next: found.best,
        visits,
        new_quanta,
    }
}

/// Removes a task from the list if the task goes to sleep. Returns whether the task remains
/// runnable.
fn is_still_runnable<S: Structures>(s: &mut S, task: u32) -> bool {
    let runs = s.read(task, Field::State) == RUNNING;
    if !runs {
        remove(s, task);
    }
    s.write(task, Field::NeedResched, 0);
    runs
}

/// Gives each task a new quantum, plus half of the rest of its old quantum.
fn refill_quanta<S: Structures>(s: &mut S) {
    for place in 0.. {
        let Some(task) = s.task(place) else { return };
        let left = s.read(task, Field::Counter);
        s.write(task, Field::Counter, left / 2 + QUANTUM_TICKS);
    }
}

/// Result of a wakeup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeupResult {
    /// Whether the task was added to the list; false if the task was already on the list.
    pub added: bool,
    /// The CPU that must call the scheduler: an idle CPU, or a CPU on which the current task must
    /// be preempted.
    pub cpu: Option<usize>,
}

/// Wakes a task. The caller holds the lock. `running` contains the current task of each CPU.
pub fn wake<S: Structures>(s: &mut S, task: u32, running: &[Option<u32>]) -> WakeupResult {
    s.write(task, Field::State, RUNNING);
    if s.read(task, Field::Next) != 0 {
        return WakeupResult {
            added: false,
            cpu: None,
        };
    }
    add(s, task);
    let cpu = cpu_for(s, task, running);
    if let Some(current) = cpu.and_then(|cpu| running[cpu]) {
        s.write(current, Field::NeedResched, 1);
    }
    WakeupResult { added: true, cpu }
}

/// Returns the CPU that `reschedule_idle()` selects for a woken task: the CPU of its last run if
/// that CPU is idle, else any idle CPU, else the CPU on which the task exceeds the goodness of the
/// current task most. In the last case, the difference must be greater than 1.
fn cpu_for<S: Structures>(s: &mut S, task: u32, running: &[Option<u32>]) -> Option<usize> {
    let last = s.read(task, Field::Processor) as usize;
    let idle = |cpu: usize| running.get(cpu).is_some_and(Option::is_none);
    let free = Some(last).filter(|&cpu| idle(cpu));
    if let Some(cpu) = free.or_else(|| (0..running.len()).find(|&cpu| idle(cpu))) {
        return Some(cpu);
    }
    let mut most = (1, None);
    for (cpu, current) in running.iter().enumerate() {
        let Some(current) = *current else { continue };
        let space = s.read(current, Field::AddressSpace);
        let better = goodness(s, task, cpu as u32, space) - goodness(s, current, cpu as u32, space);
        if better > most.0 {
            most = (better, Some(cpu));
        }
    }
    most.1
}

/// Subtracts a tick from the quantum of the running task.
pub fn tick<S: Structures>(s: &mut S, task: u32) {
    let left = s.read(task, Field::Counter).saturating_sub(1);
    s.write(task, Field::Counter, left);
    if left == 0 {
        s.write(task, Field::NeedResched, 1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Storage of structures without addresses. The number of the task with index `n` is `n + 2`.
    struct Plain(Vec<[u32; 32]>);

    impl Plain {
        fn new(tasks: usize) -> Self {
            let mut plain = Self(vec![[0; 32]; tasks + 2]);
            empty(&mut plain);
            for task in 0..tasks as u32 {
                create(&mut plain, task + 2, task % 3, 0);
            }
            plain
        }

        fn queue(&mut self) -> Vec<u32> {
            let mut queue = vec![];
            let mut at = self.read(1, Field::Next);
            while at != 1 {
                queue.push(at);
                let next = self.read(at, Field::Next);
                assert_eq!(
                    self.read(next, Field::Prev),
                    at,
                    "backward and forward links agree"
                );
                at = next;
            }
            queue
        }
    }

    impl Structures for Plain {
        fn head(&self) -> u32 {
            1
        }

        fn task(&self, place: usize) -> Option<u32> {
            (place + 2 < self.0.len()).then_some(place as u32 + 2)
        }

        fn read(&mut self, task: u32, field: Field) -> u32 {
            self.0[task as usize][field.offset_bytes() as usize / 4]
        }

        fn write(&mut self, task: u32, field: Field, value: u32) {
            self.0[task as usize][field.offset_bytes() as usize / 4] = value;
        }
    }

    #[test]
    fn fields_of_the_walk_share_a_cache_line() {
        use Field::{AddressSpace, Counter, HasCpu, Next, Nice, Processor};
        for field in [Counter, Nice, AddressSpace, HasCpu, Processor, Next] {
            assert!((0x20..0x40).contains(&field.offset_bytes()));
        }
    }

    #[test]
    fn task_stays_on_its_cpu_until_its_quantum_is_much_smaller() {
        let mut s = Plain::new(2);
        add(&mut s, 2);
        add(&mut s, 3);
        s.write(3, Field::Processor, 1);
        let first = schedule(&mut s, 0, None, walk);
        assert_eq!((first.next, first.visits), (Some(2), 2), "2 ran here last");
        (0..QUANTUM_TICKS).for_each(|_| tick(&mut s, 2));
        assert_eq!(s.read(2, Field::NeedResched), 1);
        let second = schedule(&mut s, 0, Some(2), walk);
        assert_eq!(second.next, Some(3), "2 has no quantum left");
        s.write(3, Field::State, SLEEPING);
        let third = schedule(&mut s, 0, Some(3), walk);
        assert_eq!((third.next, third.new_quanta), (Some(2), true));
        assert_eq!(s.read(3, Field::Counter), QUANTUM_TICKS / 2 + QUANTUM_TICKS);
    }

    #[test]
    fn woken_task_gets_an_idle_cpu_or_the_one_with_the_lowest_goodness() {
        let mut s = Plain::new(3);
        for task in [2, 3] {
            add(&mut s, task);
            s.write(task, Field::HasCpu, 1);
            s.write(task, Field::Processor, task - 2);
        }
        let idle = wake(&mut s, 4, &[Some(2), None]);
        assert_eq!((idle.added, idle.cpu), (true, Some(1)));
        assert!(!wake(&mut s, 4, &[Some(2), None]).added);
        remove(&mut s, 4);
        s.write(2, Field::Counter, 1);
        s.write(4, Field::Counter, 2 * QUANTUM_TICKS);
        s.write(4, Field::Processor, 1);
        s.write(3, Field::Counter, 3);
        assert_eq!(wake(&mut s, 4, &[Some(2), Some(3)]).cpu, Some(1));
        assert_eq!(s.read(3, Field::NeedResched), 1);
    }

    /// Returns the greatest goodness of the tasks on the list that do not run on other CPUs.
    fn greatest(s: &mut Plain, cpu: u32, prev: Option<u32>, elsewhere: Option<u32>) -> Option<i32> {
        let space = prev.map_or(0, |task| s.read(task, Field::AddressSpace));
        let queue = s.queue();
        let can = queue.into_iter().filter(|&task| Some(task) != elsewhere);
        can.map(|task| goodness(s, task, cpu, space)).max()
    }

    proptest! {
        /// Compares the content and order of the list with a simple model, and checks by a linear
        /// search that no task on the list is better than the selected task.
        #[test]
        fn selects_best_task_of_the_queue(steps in prop::collection::vec((0..3_u32, 0..12_u32), 1..200)) {
            let mut s = Plain::new(12);
            let mut queue: Vec<u32> = vec![];
            let mut running = [None; 2];
            for (what, which) in steps {
                let task = which + 2;
                let cpu = (which % 2) as usize;
                match (what, running[cpu]) {
                    (0, _) => {
                        let added = wake(&mut s, task, &running).added;
                        prop_assert_eq!(added, !queue.contains(&task));
                        if added {
                            queue.insert(0, task);
                        }
                    }
                    (1, Some(current)) => tick(&mut s, current),
                    (_, current) => {
                        if let Some(current) = current.filter(|_| which > 5) {
                            s.write(current, Field::State, SLEEPING);
                            queue.retain(|&other| other != current);
                        }
                        let chosen = schedule(&mut s, cpu as u32, current, walk);
                        let passes = 1 + u32::from(chosen.new_quanta);
                        prop_assert_eq!(chosen.visits, passes * queue.len() as u32);
                        running[cpu] = chosen.next;
                        prop_assert_eq!(s.queue(), queue.clone());
                        let elsewhere = running[1 - cpu];
                        let greatest = greatest(&mut s, cpu as u32, current, elsewhere);
                        prop_assert_eq!(chosen.next.is_some(), greatest.is_some());
                        if let Some(next) = chosen.next {
                            prop_assert!(queue.contains(&next) && Some(next) != elsewhere);
                            prop_assert!(s.read(next, Field::HasCpu) == 1);
                            let space = current.map_or(0, |task| s.read(task, Field::AddressSpace));
                            let its = goodness(&mut s, next, cpu as u32, space);
                            prop_assert!(Some(its) >= greatest);
                        }
                    }
                }
            }
        }
    }
}
