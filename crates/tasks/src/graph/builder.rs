// SPDX-License-Identifier: MIT OR Apache-2.0
//! Declaration of a graph: tasks with groups, data and code addresses, and their dependencies.
//! [`GraphBuilder::build`] sorts the dependencies (O(d log d) for d dependencies), checks by Kahn's
//! algorithm that they form no cycle (time linear in tasks and dependencies), and packs them for
//! running (`plan`). A graph has at most 2^32 - 1 tasks and as many declared dependencies. A cycle,
//! an unknown task and a graph that is too large are errors. Lack of memory ends the process.

use super::Graph;
use super::finder::OrderFinder;
use super::successors::Successors;
use crate::dispatch::Groups;
use crate::error::GraphError;

/// Declares tasks and their dependencies.
///
/// Tasks are numbered from 0 in the order of their declaration.
///
/// The order in which ready tasks run decides which data the caches contain. Specify the order by
/// [`Groups`], or let the runtime find an order: the first runs of a graph without groups try
/// several likely orders, and later runs use the fastest of them if it is clearly faster than the
/// declared order (see [`Graph::explain`] and [`Self::keep_order`]). To help
/// the runtime find a good order, declare tasks in the order in which a sequential program would
/// run them, and name the data that each task works on ([`Self::on`]).
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
    /// Dependencies: pairs of a task and of a task that runs after it.
    edges: Vec<(usize, usize)>,
    /// Pairs of a task and the address of its data. The next field contains pairs of a task and the
    /// address of its code.
    data: Vec<(usize, usize)>,
    code: Vec<(usize, usize)>,
    keeps_order: bool,
}

impl GraphBuilder {
    /// Creates a builder without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a task and returns its number.
    pub fn task(&mut self) -> usize {
        self.task_in(Groups::NONE)
    }

    /// Declares a task in these groups and returns its number.
    pub fn task_in(&mut self, groups: Groups) -> usize {
        self.groups.push(groups);
        self.groups.len() - 1
    }

    /// Declares that `task` works on the data at this address, or on the data that this number
    /// identifies. Tasks on the same or neighbouring data may be faster if they run close in time.
    /// The runtime tries this order if the graph has at least 256 tasks.
    pub fn on(&mut self, task: usize, data: usize) -> &mut Self {
        self.data.push((task, data));
        self
    }

    /// Declares that `task` runs the code at this address, or the code that this number identifies.
    /// Tasks of the same code may be faster if they run close in time.
    pub fn runs(&mut self, task: usize, code: usize) -> &mut Self {
        self.code.push((task, code));
        self
    }

    /// Declares that `task` runs after `before`. Repeating a declaration has no effect.
    pub fn after(&mut self, task: usize, before: usize) -> &mut Self {
        self.edges.push((before, task));
        self
    }

    /// Makes the graph keep the declared order: of two ready tasks, the one that was declared first
    /// runs first by preference. No other order is tried. Use this if the declared order is known
    /// to be good, or if the graph runs only a few times. It has no effect if tasks have groups.
    pub fn keep_order(&mut self) -> &mut Self {
        self.keeps_order = true;
        self
    }

    /// Creates a graph whose task `i` calls `body(i)`.
    ///
    /// # Errors
    /// If the dependencies form a cycle, or if a declaration names a task that does not exist.
    pub fn build<B: Fn(usize) + Sync>(self, body: B) -> Result<Graph<B>, GraphError> {
        let count = self.groups.len();
        let ends = self.edges.iter().flat_map(|&(from, to)| [from, to]);
        let hinted = self.data.iter().chain(&self.code).map(|&(task, _)| task);
        let mut named = ends.chain(hinted);
        if let Some(task) = named.find(|&task| task >= count) {
            return Err(GraphError::NoSuchTask { task, count });
        }
        check_size(count, "tasks")?;
        check_size(self.edges.len(), "dependencies")?;
        let after = Successors::new(count, &self.edges);
        check_acyclic(&after)?;
        let mut graph = Graph::new(&self.groups, &after, body);
        if self.groups.iter().all(|&groups| groups == Groups::NONE) {
            let all = |hinted: &[(usize, usize)]| {
                let mut all = vec![0; if hinted.is_empty() { 0 } else { count }];
                hinted.iter().for_each(|&(task, what)| all[task] = what);
                all
            };
            graph.finder = Some(match self.keeps_order {
                true => OrderFinder::that_keeps_order(after),
                false => OrderFinder::new(after, all(&self.data), all(&self.code)),
            });
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

/// Checks that the dependencies form no cycle, by Kahn's algorithm: removes tasks without
/// dependencies until no such task is left. Tasks that remain depend on a cycle.
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
            tasks: find_cycle(after, &waits),
        }),
    }
}

/// Returns a cycle among the tasks with unresolved dependencies. Each remaining task depends on
/// another remaining task, so following these dependencies leads back to a task seen before.
fn find_cycle(after: &Successors, waits: &[u32]) -> Vec<usize> {
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
