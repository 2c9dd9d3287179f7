// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes bounds of the work of one repetition of a program from its script. Fuzz cases check the
//! simulated work against these bounds, to detect lost work. The bounds are valid only for scripts
//! that the fuzzer generates. The computation visits each step once.

use crate::script::{Op, Script, ThreadKind};

/// Returns the minimum and the maximum work of one repetition in nanoseconds. The script must have
/// the form that the fuzzer generates: each role repeats all its steps or none of them, pools are
/// refilled in each iteration, and a role that takes items from a queue works once per item.
pub(super) fn bounds(script: &Script) -> (f64, f64) {
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

/// Returns the number of iterations of a role's steps, summed over all its threads.
fn rounds(role: &ThreadKind, script: &Script) -> f64 {
    let takes = |op: &Op| matches!(op, Op::Take(_));
    if role.steps.iter().any(takes) {
        let puts = |role: &&ThreadKind| role.steps.iter().any(|op| matches!(op, Op::Put(_)));
        let writers = script.roles.iter().filter(puts);
        return writers.map(|role| rounds(role, script)).sum();
    }
    let again = role.steps.iter().find_map(|op| match op {
        Op::Loop { times, .. } => Some(*times),
        _ => None,
    });
    f64::from(again.unwrap_or(1)) * f64::from(role.threads)
}
