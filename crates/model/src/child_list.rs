// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the kernel's lists of child processes (`/proc/PID/task/TID/children`) without omissions.
//!
//! **Problem.** The kernel writes such a list entry by entry. If the process of the last written entry
//! is reaped during this, the kernel continues by position and omits one living child. If a thread
//! ends, its children move to the list of another thread, which may have been read already.
//!
//! **Idea.** Read the lists of all threads until two consecutive readings agree. An omission requires
//! that a process of this reading is reaped, so that the next reading lacks this process.
//!
//! 1. A reading without children has no omission if no thread ended during it. One reading is
//!    enough.
//! 2. Otherwise read again until the result is the same as before and no thread ended.
//! 3. After `READS_MAX` readings, return the processes of all readings. Some of them have ended.
//!
//! *Limit.* A child is missed if each of `READS_MAX` readings omits it.

use std::collections::BTreeSet;

/// Upper limit of the readings of one process's children.
const READS_MAX: usize = 16;

/// One reading of the children of all threads of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildList {
    /// The children.
    pub pids: BTreeSet<i32>,
    /// Whether the list of a thread could not be read, because the thread ended.
    pub lacks_threads: bool,
}

impl ChildList {
    /// Adds the list of one thread; `None`: the thread has ended.
    pub fn add_thread(&mut self, list: Option<&str>) {
        self.lacks_threads |= list.is_none();
        let words = list.into_iter().flat_map(str::split_whitespace);
        self.pids
            .extend(words.filter_map(|word| word.parse::<i32>().ok()));
    }
}

/// Returns the children of a process. `read` reads the lists of all threads once; `None` if this is
/// impossible.
pub fn read_children(mut read: impl FnMut() -> Option<ChildList>) -> Option<BTreeSet<i32>> {
    let mut all = BTreeSet::new();
    let mut before = None;
    for _ in 0..READS_MAX {
        let list = read()?;
        let is_equal = list.pids.is_empty() || before.as_ref() == Some(&list.pids);
        if is_equal && !list.lacks_threads {
            return Some(list.pids);
        }
        all.extend(&list.pids);
        before = Some(list.pids);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these lists one after the other, and the last one again and again. A list consists of the
    /// lists of threads, separated by `|`; `ended` stands for an ended thread. Returns the children and the number of readings.
    fn read(lists: &[&str]) -> (Vec<i32>, usize) {
        let mut reads = 0;
        let children = read_children(|| {
            let text = lists[reads.min(lists.len() - 1)];
            reads += 1;
            let mut list = ChildList::default();
            for thread in text.split('|') {
                list.add_thread((thread != "ended").then_some(thread));
            }
            Some(list)
        });
        (children.unwrap().into_iter().collect(), reads)
    }

    #[test]
    fn a_child_that_one_reading_omits_is_found() {
        // Child 10 ends after its entry was written, and the kernel omits child 11.
        assert_eq!(read(&["10 12 ", "11 12 "]), (vec![11, 12], 3));
    }

    #[test]
    fn a_child_that_moves_between_the_lists_of_threads_is_found() {
        assert_eq!(read(&["|ended", "11 "]), (vec![11], 3));
        assert_eq!(read(&["10 |ended", "10 11 "]), (vec![10, 11], 3));
    }

    #[test]
    fn a_process_without_children_is_read_once() {
        assert_eq!(read(&["||"]), (vec![], 1));
        assert_eq!(read(&["10 |11 "]), (vec![10, 11], 2));
    }

    #[test]
    fn children_that_change_in_each_reading_are_all_returned() {
        let lists: Vec<String> = (0..40).map(|pid| format!("{pid} 99 ")).collect();
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        let (children, reads) = read(&lists);
        assert_eq!(reads, READS_MAX);
        assert_eq!(children.len(), READS_MAX + 1);
    }

    #[test]
    fn children_that_cannot_be_read_are_unknown() {
        assert_eq!(read_children(|| None), None);
    }
}
