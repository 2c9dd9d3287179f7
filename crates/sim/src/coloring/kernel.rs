// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler of Linux 2.4: one list of all that can run, walked in full at
//! each decision.
//!
//! All runnable tasks, those that run included, hang on one doubly linked list
//! under one lock. `schedule()` takes off the list who goes to sleep, walks the
//! whole of it, and gives the CPU to the task with the greatest *goodness*: what
//! is left of its quantum, plus a bonus for the CPU that it ran on last and one
//! for the address space that is loaded. When nobody has quantum left, everybody
//! gets a new one. A wake-up puts a task at the head of the list, and looks for a
//! CPU that is idle or runs somebody much less deserving (`reschedule_idle()`).
//!
//! The code is generic in where the task structures are, so that the same
//! decisions are made in a simulated machine, which charges for each look at a
//! structure, and in this machine's memory, where each look is one.
//!
//! One liberty: new quanta are given out under the lock; Linux drops it meanwhile.

/// What the scheduler keeps in a task structure, a word of 32 bits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// [`RUNNING`] or [`SLEEPING`].
    State,
    /// Not 0: whoever runs shall call the scheduler.
    NeedResched,
    /// Ticks left of the quantum.
    Counter,
    /// -20..=19, as an `i32`.
    Nice,
    /// Number of the address space.
    AddressSpace,
    /// Whether it runs at the moment.
    HasCpu,
    /// The CPU that it runs on or ran on last.
    Processor,
    /// The next on the list; 0 for who is not on it.
    Next,
    /// The one before.
    Prev,
}

impl Field {
    /// Where it lies in the structure. From 2.4.4 for 32 bits: what `goodness()`
    /// reads lies at 0x20..=0x3f, one line of the Pentium III.
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

/// Bytes of a structure, as far as the scheduler uses it.
pub const STRUCTURE_BYTES: usize = 128;
/// Bytes of the block at whose start it stands: a kernel stack.
pub const BLOCK_BYTES: usize = 8192;

/// Wants to run.
pub const RUNNING: u32 = 0;
/// Waits for something.
pub const SLEEPING: u32 = 1;

/// What a task is worth more on the CPU that it ran on last
/// (`PROC_CHANGE_PENALTY` on i386).
const SAME_CPU: i32 = 15;
/// Ticks of a new quantum at nice 0 with 100 ticks a second (`NICE_TO_TICKS`).
pub const QUANTUM_TICKS: u32 = 6;
/// Less than anybody's goodness.
const NOBODY: i32 = -1000;

/// Task structures and the head of their list. A task is a number, not 0, of the
/// implementation's choice.
pub trait Structures {
    /// The head, which has [`Field::Next`] and [`Field::Prev`] alone.
    fn head(&self) -> u32;
    /// The task of that place in the list of all, if there are so many.
    fn task(&self, place: usize) -> Option<u32>;
    /// Reads a field.
    fn read(&mut self, task: u32, field: Field) -> u32;
    /// Writes a field.
    fn write(&mut self, task: u32, field: Field, value: u32);
}

/// How much a task deserves that CPU while that address space is loaded.
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

/// What a walk found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walked {
    /// The best task so far.
    pub best: Option<u32>,
    /// Its goodness.
    pub goodness: i32,
    /// Structures looked at.
    pub visits: u32,
}

impl Walked {
    /// Nobody yet.
    pub const NOTHING: Self = Self {
        best: None,
        goodness: NOBODY,
        visits: 0,
    };
}

/// Walks the whole list for somebody better than `so_far` among those who do not
/// run.
#[inline(always)]
pub fn walk<S: Structures>(s: &mut S, cpu: u32, space: u32, so_far: Walked) -> Walked {
    let head = s.head();
    let mut walked = so_far;
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

/// Makes the list an empty one.
pub fn empty<S: Structures>(s: &mut S) {
    let head = s.head();
    s.write(head, Field::Next, head);
    s.write(head, Field::Prev, head);
}

/// Gives a structure what a new task has, off the list.
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

/// Takes a task off the list.
pub fn remove<S: Structures>(s: &mut S, task: u32) {
    let (next, prev) = (s.read(task, Field::Next), s.read(task, Field::Prev));
    s.write(next, Field::Prev, prev);
    s.write(prev, Field::Next, next);
    s.write(task, Field::Next, 0);
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Who runs next; nobody where nobody can.
    pub next: Option<u32>,
    /// Structures looked at on the way.
    pub visits: u32,
    /// Whether everybody got a new quantum.
    pub new_quanta: bool,
}

/// Who runs on that CPU after `prev`; under the lock. `walker` is [`walk`], or
/// what calls it.
pub fn schedule<S: Structures>(
    s: &mut S,
    cpu: u32,
    prev: Option<u32>,
    mut walker: impl FnMut(&mut S, u32, u32, Walked) -> Walked,
) -> Chosen {
    let goes_on = prev.filter(|&task| still_runs(s, task));
    let space = prev.map_or(0, |task| s.read(task, Field::AddressSpace));
    let (mut visits, mut new_quanta) = (0, false);
    let found = loop {
        let so_far = match goes_on {
            Some(task) => Walked {
                best: Some(task),
                goodness: goodness(s, task, cpu, space),
                visits: 0,
            },
            None => Walked::NOTHING,
        };
        let found = walker(s, cpu, space, so_far);
        visits += found.visits;
        if found.goodness != 0 {
            break found;
        }
        give_quanta(s);
        new_quanta = true;
    };
    if let Some(next) = found.best {
        s.write(next, Field::HasCpu, 1);
        s.write(next, Field::Processor, cpu);
    }
    if let Some(prev) = prev.filter(|_| prev != found.best) {
        s.write(prev, Field::HasCpu, 0);
    }
    Chosen {
        next: found.best,
        visits,
        new_quanta,
    }
}

/// Takes a task that goes to sleep off the list; whether it does not.
fn still_runs<S: Structures>(s: &mut S, task: u32) -> bool {
    let runs = s.read(task, Field::State) == RUNNING;
    if !runs {
        remove(s, task);
    }
    s.write(task, Field::NeedResched, 0);
    runs
}

/// A new quantum for everybody, with half of what is left of the old.
fn give_quanta<S: Structures>(s: &mut S) {
    for place in 0.. {
        let Some(task) = s.task(place) else { return };
        let left = s.read(task, Field::Counter);
        s.write(task, Field::Counter, left / 2 + QUANTUM_TICKS);
    }
}

/// What came of a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Woken {
    /// Whether the task was put on the list; else it was there.
    pub added: bool,
    /// The CPU that shall call the scheduler: an idle one, or one whose task was
    /// told so.
    pub cpu: Option<usize>,
}

/// Wakes a task; under the lock. `running` is who runs on each CPU.
pub fn wake<S: Structures>(s: &mut S, task: u32, running: &[Option<u32>]) -> Woken {
    s.write(task, Field::State, RUNNING);
    if s.read(task, Field::Next) != 0 {
        return Woken {
            added: false,
            cpu: None,
        };
    }
    add(s, task);
    let cpu = cpu_for(s, task, running);
    if let Some(current) = cpu.and_then(|cpu| running[cpu]) {
        s.write(current, Field::NeedResched, 1);
    }
    Woken { added: true, cpu }
}

/// `reschedule_idle()`: the CPU it ran on last if that is idle, any idle one, or
/// the one whose task it beats by most, and by more than 1.
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

/// A tick of the clock for who runs.
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

    /// Structures without places: task `n` is `n + 2`.
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
                    "the list back is the list"
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
    fn the_fields_of_the_walk_share_a_line() {
        use Field::{AddressSpace, Counter, HasCpu, Next, Nice, Processor};
        for field in [Counter, Nice, AddressSpace, HasCpu, Processor, Next] {
            assert!((0x20..0x40).contains(&field.offset_bytes()));
        }
    }

    #[test]
    fn a_task_stays_on_its_cpu_until_its_quantum_is_much_smaller() {
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
    fn who_is_woken_gets_an_idle_cpu_or_the_least_deserving() {
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

    /// The greatest goodness on the queue among those who do not run elsewhere.
    fn greatest(s: &mut Plain, cpu: u32, prev: Option<u32>, elsewhere: Option<u32>) -> Option<i32> {
        let space = prev.map_or(0, |task| s.read(task, Field::AddressSpace));
        let queue = s.queue();
        let can = queue.into_iter().filter(|&task| Some(task) != elsewhere);
        can.map(|task| goodness(s, task, cpu, space)).max()
    }

    proptest! {
        /// Against a list that is searched: who is on the queue, in which order,
        /// and that nobody better than who is chosen is left.
        #[test]
        fn the_best_of_the_queue_runs(steps in prop::collection::vec((0..3_u32, 0..12_u32), 1..200)) {
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
