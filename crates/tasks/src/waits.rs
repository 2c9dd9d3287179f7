// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runtimes that wait for one another.
//!
//! A task may wait for another runtime: run a graph there, wait for its tokens, drop
//! it. Its worker does nothing else meanwhile. If tasks of the other one wait for the
//! first, each may wait for the other's workers, for ever. So whoever is about to wait
//! says so here, and is refused where that would close a circle. It is refused, too,
//! where enough workers are left for all to go well: who that matters to lets one side
//! only wait for the other.

use crate::sync::StaticMutex;

/// Who waits, for whom; as often as there are tasks that do.
static WAITS: StaticMutex<Vec<(usize, usize)>> = StaticMutex::new(Vec::new());

/// Somebody waits for somebody else, as long as this lives.
#[derive(Debug)]
#[must_use]
pub struct Wait(usize, usize);

/// One would wait for another who waits for it, itself or by way of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circle;

impl Wait {
    /// One is about to wait for another; each is known by an address of its own.
    ///
    /// # Errors
    /// Where that would close a circle.
    pub fn begin(from: usize, to: usize) -> Result<Self, Circle> {
        let mut waits = WAITS.lock();
        if leads(&waits, to, from) {
            return Err(Circle);
        }
        waits.push((from, to));
        Ok(Self(from, to))
    }
}

/// Whether one waits for the other, by way of any.
fn leads(waits: &[(usize, usize)], from: usize, to: usize) -> bool {
    let mut seen = vec![from];
    let mut at = 0;
    while let Some(&one) = seen.get(at) {
        at += 1;
        for &(waiting, other) in waits {
            if waiting == one && !seen.contains(&other) {
                seen.push(other);
            }
        }
    }
    seen.contains(&to)
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut waits = WAITS.lock();
        if let Some(at) = waits.iter().position(|&one| one == (self.0, self.1)) {
            waits.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_seen_however_long() {
        let waits = [(1, 2), (2, 3), (1, 3), (5, 1), (3, 4)];
        assert!(leads(&waits, 1, 4) && leads(&waits, 5, 4) && leads(&waits, 2, 2));
        assert!(!leads(&waits, 4, 1) && !leads(&waits, 3, 5) && !leads(&[], 1, 2));
        let round = [(1, 2), (2, 1)];
        assert!(leads(&round, 1, 2) && !leads(&round, 1, 3), "and it ends");
    }
}
