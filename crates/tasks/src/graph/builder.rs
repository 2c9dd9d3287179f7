// SPDX-License-Identifier: MIT OR Apache-2.0
//! Declaring a graph.

use super::Graph;
use super::finder::Finder;
use crate::dispatch::Groups;
use crate::error::GraphError;

/// Tasks and who waits for whom, before they can be run.
///
/// Tasks are numbered from 0 in the order in which they are declared.
///
/// Which of several ready tasks runs first decides what caches hold. Say it by
/// [`Groups`], or say nothing: a graph without groups that is run again and again is
/// run in several likely orders at first, and then in the one that was fastest
/// ([`Graph::explain`] tells which). It helps to declare tasks as a sequential program
/// would run them, and to say which data each works on ([`Self::on`]).
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use usher_tasks::{GraphBuilder, Runtime};
///
/// let mut builder = GraphBuilder::new();
/// let first = builder.task();
/// let second = builder.task();
/// builder.after(second, first);
/// let sum = AtomicU64::new(1);
/// let mut graph = builder.build(|task| {
///     match task {
///         0 => sum.fetch_add(2, Ordering::Relaxed),
///         _ => sum.fetch_max(sum.load(Ordering::Relaxed) * 10, Ordering::Relaxed),
///     };
/// })?;
/// let runtime = Runtime::new(2)?;
/// runtime.run(&mut graph)?;
/// assert_eq!(sum.load(Ordering::Relaxed), 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    groups: Vec<Groups>,
    /// From, to.
    edges: Vec<(usize, usize)>,
    /// Tasks with the addresses of their data, and with their entries.
    data: Vec<(usize, usize)>,
    code: Vec<(usize, usize)>,
}

impl GraphBuilder {
    /// Without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more task; its number.
    pub fn task(&mut self) -> usize {
        self.task_in(Groups::NONE)
    }

    /// One more task in those groups; its number.
    pub fn task_in(&mut self, groups: Groups) -> usize {
        self.groups.push(groups);
        self.groups.len() - 1
    }

    /// `task` works on the data at that address, or with that number: tasks on the
    /// same data, or on neighbouring data, may do well close together.
    pub fn on(&mut self, task: usize, data: usize) -> &mut Self {
        self.data.push((task, data));
        self
    }

    /// `task` runs the code at that address, or with that number: tasks of the same
    /// code may do well close together.
    pub fn runs(&mut self, task: usize, code: usize) -> &mut Self {
        self.code.push((task, code));
        self
    }

    /// `task` runs after `before` has run. Said twice it is as said once.
    pub fn after(&mut self, task: usize, before: usize) -> &mut Self {
        self.edges.push((before, task));
        self
    }

    /// A graph whose task `i` is a call of `body(i)`.
    ///
    /// # Errors
    /// Where tasks wait for one another in a circle, or a task was named that there
    /// is not.
    pub fn build<B: Fn(usize) + Sync>(self, body: B) -> Result<Graph<B>, GraphError> {
        let count = self.groups.len();
        let ends = self.edges.iter().flat_map(|&(from, to)| [from, to]);
        let said = self.data.iter().chain(&self.code).map(|&(task, _)| task);
        let mut named = ends.chain(said);
        if let Some(task) = named.find(|&task| task >= count) {
            return Err(GraphError::NoSuchTask { task, count });
        }
        check_size(count, "tasks")?;
        check_size(self.edges.len(), "dependencies")?;
        let after = Successors::new(count, &self.edges);
        check_acyclic(&after)?;
        let mut graph = Graph::new(&self.groups, &after, body);
        if self.groups.iter().all(|&groups| groups == Groups::NONE) {
            let all = |said: &[(usize, usize)]| {
                let mut all = vec![0; if said.is_empty() { 0 } else { count }];
                said.iter().for_each(|&(task, what)| all[task] = what);
                all
            };
            graph.finder = Some(Finder::new(after, all(&self.data), all(&self.code)));
        }
        Ok(graph)
    }
}

fn check_size(count: usize, what: &'static str) -> Result<(), GraphError> {
    match u32::try_from(count) {
        Ok(_) => Ok(()),
        Err(_) => Err(GraphError::TooLarge { count, what }),
    }
}

/// Who waits for whom, by whom is waited for.
#[derive(Debug)]
pub(super) struct Successors {
    /// Task `i`'s are those from `first[i]` to `first[i + 1]`.
    pub first: Vec<u32>,
    pub tasks: Vec<u32>,
    /// How many each waits for.
    pub waits: Vec<u32>,
}

impl Successors {
    /// Sizes have been checked.
    pub fn new(count: usize, edges: &[(usize, usize)]) -> Self {
        let mut edges = edges.to_vec();
        edges.sort_unstable();
        edges.dedup();
        let mut waits = vec![0; count];
        let mut first = vec![0; count + 1];
        for &(from, to) in &edges {
            first[from + 1] += 1;
            waits[to] += 1;
        }
        for task in 0..count {
            first[task + 1] += first[task];
        }
        let tasks = edges.iter().map(|&(_, to)| to as u32).collect();
        Self {
            first,
            tasks,
            waits,
        }
    }

    pub fn count(&self) -> usize {
        self.waits.len()
    }

    pub fn of(&self, task: usize) -> &[u32] {
        &self.tasks[self.first[task] as usize..self.first[task + 1] as usize]
    }
}

/// Takes away what waits for nothing, until nothing is left (Kahn).
fn check_acyclic(after: &Successors) -> Result<(), GraphError> {
    let mut waits = after.waits.clone();
    let mut free: Vec<usize> = (0..after.count())
        .filter(|&task| waits[task] == 0)
        .collect();
    let mut taken = 0;
    while let Some(task) = free.pop() {
        taken += 1;
        for &next in after.of(task) {
            waits[next as usize] -= 1;
            if waits[next as usize] == 0 {
                free.push(next as usize);
            }
        }
    }
    match taken == after.count() {
        true => Ok(()),
        false => Err(GraphError::Cycle {
            tasks: circle(after, &waits),
        }),
    }
}

/// A circle among the tasks that still wait. Each of them waits for another one of
/// them, so whoever goes from one to one that it waits for comes round in the end.
fn circle(after: &Successors, waits: &[u32]) -> Vec<usize> {
    let mut before = vec![None; after.count()];
    let left = || (0..after.count()).filter(|&task| waits[task] > 0);
    for task in left() {
        for &next in after.of(task) {
            before[next as usize] = Some(task);
        }
    }
    let mut seen = vec![false; after.count()];
    let mut at = left().next();
    while let Some(task) = at.filter(|&task| !seen[task]) {
        seen[task] = true;
        at = before[task];
    }
    let Some(start) = at else { return Vec::new() };
    let round = std::iter::successors(before[start], |&task| before[task]);
    let mut tasks: Vec<usize> = round.take_while(|&task| task != start).collect();
    tasks.push(start);
    tasks.reverse();
    tasks
}
