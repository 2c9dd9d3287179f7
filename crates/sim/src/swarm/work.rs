// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much work a program has to do, read off its script.

use crate::script::{Op, Role, Script};

/// Least and most work of one repetition, in nanoseconds; for scripts as those
/// of the swarm: every role goes through its steps again from the first, or not
/// at all, pools are filled again in each round, and a role that takes from a
/// queue does its work once an item.
pub(super) fn of(script: &Script) -> (f64, f64) {
    let (mut least, mut most) = (0.0, 0.0);
    for role in &script.roles {
        let rounds = rounds(role, script);
        for op in &role.steps {
            let (work, spread) = match *op {
                Op::Work { ns, spread } => (rounds * ns, spread),
                Op::Items { pool, ns, spread } => {
                    let each = rounds / f64::from(role.threads);
                    (each * f64::from(script.pools[pool]) * ns, spread)
                }
                Op::Serial { ns } => (rounds / f64::from(role.threads) * ns, 0.0),
                _ => (0.0, 0.0),
            };
            least += work * (1.0 - spread);
            most += work * (1.0 + spread);
        }
    }
    (least, most)
}

/// How often a role's threads go through its steps, all together.
fn rounds(role: &Role, script: &Script) -> f64 {
    let takes = |op: &Op| matches!(op, Op::Take(_));
    if role.steps.iter().any(takes) {
        let puts = |role: &&Role| role.steps.iter().any(|op| matches!(op, Op::Put(_)));
        let writers = script.roles.iter().filter(puts);
        return writers.map(|role| rounds(role, script)).sum();
    }
    let again = role.steps.iter().find_map(|op| match op {
        Op::Again { times, .. } => Some(*times),
        _ => None,
    });
    f64::from(again.unwrap_or(1)) * f64::from(role.threads)
}
