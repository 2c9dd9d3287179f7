// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom tests of tasks with predecessors.

use loom::sync::Arc as LoomArc;
use loom::thread;

use super::node::{Node, Outcome};
use super::*;
use crate::sync::{AtomicUsize, Ordering};

fn node() -> Arc<Node> {
    Node::new(TaskHint::Groups(Groups::NONE), Box::new(|| ()))
}

/// Two tasks end on two threads while a third task that depends on both is declared. The third task
/// is submitted once, or dropped if one of the two has failed.
#[test]
fn a_task_with_two_predecessors_becomes_ready_once() {
    for outcome in [Outcome::Succeeded, Outcome::Failed] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let submitted = LoomArc::new(AtomicUsize::new(0));
            let before = [node(), node()];
            let threads = [Outcome::Succeeded, outcome].into_iter().zip(&before);
            let threads: Vec<_> = threads
                .map(|(outcome, node)| {
                    let (node, submitted) = (Arc::clone(node), LoomArc::clone(&submitted));
                    thread::spawn(move || {
                        node.end(outcome, |_| _ = submitted.fetch_add(1, Ordering::Relaxed));
                    })
                })
                .collect();
            let next = node();
            before.iter().for_each(|before| before.precede(&next));
            let declared = Arc::clone(&next).declare(|_| {
                submitted.fetch_add(1, Ordering::Relaxed);
                Ok::<(), ()>(())
            });
            declared.unwrap();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            let runs = outcome == Outcome::Succeeded;
            assert_eq!(submitted.load(Ordering::Relaxed), usize::from(runs));
            assert_eq!(next.take_function().is_some(), runs);
        });
    }
}
