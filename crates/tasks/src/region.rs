// SPDX-License-Identifier: MIT OR Apache-2.0
//! Isolate regions: parts of a task whose nested waits run only tasks that were created in the
//! region.
//!
//! Problem: a task that holds a mutex and waits for a graph, a scope or a join may run another task
//! during the wait, which takes the same mutex. Another worker may also block on the mutex while it
//! holds tasks for which the region waits.
//!
//! Idea: in a region, the worker behaves like the only worker of its runtime. Graphs, scopes, joins
//! and loops run on the worker alone, and their tasks are neither published nor injected. Tasks with futures that are
//! submitted in the region belong to it. Other workers may run them, in the same region, so they
//! never wait for tasks outside the region.

use std::sync::Arc;

/// A region. Regions may be nested.
#[derive(Debug)]
pub(crate) struct Region {
    outer: Option<Arc<Region>>,
}

impl Region {
    pub fn new(outer: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { outer })
    }

    /// Returns whether `inner` is this region or lies inside it. Takes time linear in the number of
    /// nested regions.
    pub fn contains(&self, inner: Option<&Arc<Self>>) -> bool {
        let mut at = inner;
        while let Some(region) = at {
            if std::ptr::eq(self, &raw const **region) {
                return true;
            }
            at = region.outer.as_ref();
        }
        false
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_region_contains_itself_and_inner_regions() {
        let outer = Region::new(None);
        let inner = Region::new(Some(Arc::clone(&outer)));
        let other = Region::new(None);
        assert!(outer.contains(Some(&outer)) && outer.contains(Some(&inner)));
        assert!(!inner.contains(Some(&outer)) && !outer.contains(Some(&other)));
        assert!(!outer.contains(None));
    }
}
