// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chat workload: the members of chat rooms send messages to one another through a server.
//!
//! The structure follows the description of the benchmark (Franke et al., "PMQS: Scalable Linux
//! Scheduling for High End Servers", ALS 2001; after VolanoMark). A room has 20 members. Each
//! member has four threads (tasks of this workload): a sender and a receiver in the client process,
//! and a receiver and a sender in the server process. A message takes these steps:
//!
//! 1. The member's sender in the client sends the message to the member's receiver in the server.
//! 2. This receiver passes a copy to the server's sender of every member of the room, one copy per
//!    operation.
//! 3. Each of these senders sends its copy to the receiver in the client of its member. The copy is
//!    then completed.
//!
//! The description does not state by how many messages a member may be ahead of the others. In the
//! benchmark, the sizes of the socket buffers limit this number. In this model, a member may be at
//! most `ahead` messages ahead of the messages that it has received.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::{OperationResult, Workload};

/// A queue of messages for one reader, of which only the number is stored.
#[derive(Debug, Default)]
struct Mailbox {
    count: AtomicU32,
    reader_waits: AtomicBool,
}

impl Mailbox {
    /// Adds a message. Returns whether the reader was waiting for a message.
    fn put(&self) -> bool {
        self.count.fetch_add(1, SeqCst);
        self.reader_waits.load(SeqCst) && self.reader_waits.swap(false, SeqCst)
    }

    /// Takes a message and returns true. If there is no message, marks the reader as waiting and
    /// returns false.
    fn take(&self) -> bool {
        if self.count.load(SeqCst) == 0 {
            self.reader_waits.store(true, SeqCst);
            // A writer may have added a message and checked the mark before this reader set the
            // mark. The count is therefore checked again.
            if self.count.load(SeqCst) == 0 {
                return false;
            }
            self.reader_waits.store(false, SeqCst);
        }
        self.count.fetch_sub(1, SeqCst);
        true
    }
}

#[derive(Debug, Default)]
struct Member {
    /// Messages from the client's sender to the server's receiver.
    server_inbox: Mailbox,
    /// Copies from the receivers of the room to the server's sender.
    server_outbox: Mailbox,
    /// Copies from the server's sender to the client's receiver.
    client_inbox: Mailbox,
    /// Number of messages that the member has sent.
    sent: AtomicU64,
    /// Number of copies that the member has received.
    received: AtomicU64,
    /// Whether the client's sender waits, because it is `ahead` messages ahead.
    sender_waits: AtomicBool,
    /// Number of copies of the present message that the server's receiver still has to pass on.
    copies: AtomicU32,
}

/// Number of threads of a member.
const THREADS: usize = 4;

/// The state of the chat.
#[derive(Debug)]
pub struct Chat {
    members_per_room: usize,
    ahead: u64,
    members: Vec<Member>,
    delivered: AtomicU64,
}

impl Chat {
    /// Creates `rooms` rooms with `members_per_room` members each; a member has four tasks. A
    /// member may be `ahead` messages (at least 1) ahead of the messages that it has received.
    pub fn new(rooms: usize, members_per_room: usize, ahead: u64) -> Self {
        Self {
            members_per_room,
            ahead: ahead.max(1),
            members: (0..rooms * members_per_room)
                .map(|_| Member::default())
                .collect(),
            delivered: AtomicU64::new(0),
        }
    }

    /// Returns the number of messages that all members have sent.
    pub fn sent(&self) -> u64 {
        self.members.iter().map(|m| m.sent.load(SeqCst)).sum()
    }

    /// Returns the number of copies in transit. A message that the server has not passed on yet
    /// counts as all its copies.
    pub fn copies_in_transit(&self) -> u64 {
        let of = |m: &Member| {
            let whole = u64::from(m.server_inbox.count.load(SeqCst)) * self.members_per_room as u64;
            let copies = [&m.copies, &m.server_outbox.count, &m.client_inbox.count];
            whole
                + copies
                    .map(|c| u64::from(c.load(SeqCst)))
                    .iter()
                    .sum::<u64>()
        };
        self.members.iter().map(of).sum()
    }

    fn may_send(&self, member: &Member) -> bool {
        let rounds = member.received.load(SeqCst) / self.members_per_room as u64;
        member.sent.load(SeqCst) < rounds + self.ahead
    }

    fn send(&self, member: &Member) -> Option<bool> {
        if !self.may_send(member) {
            member.sender_waits.store(true, SeqCst);
            if !self.may_send(member) {
                return None;
            }
            member.sender_waits.store(false, SeqCst);
        }
        member.sent.fetch_add(1, SeqCst);
        Some(member.server_inbox.put())
    }

    /// Executes an operation of the server's receiver: takes a message, or passes on one copy of
    /// it. Returns `None` if there is no message, otherwise the recipient if it was waiting.
    fn forward_copy(&self, number: usize) -> Option<Option<usize>> {
        let member = &self.members[number];
        let left = member.copies.load(SeqCst);
        if left == 0 {
            let taken = member.server_inbox.take();
            return taken.then(|| {
                member.copies.store(self.members_per_room as u32, SeqCst);
                None
            });
        }
        member.copies.store(left - 1, SeqCst);
        let first = number - number % self.members_per_room;
        let to = first + left as usize - 1;
        Some(self.members[to].server_outbox.put().then_some(to))
    }

    fn receive(&self, member: &Member) -> Option<bool> {
        if !member.client_inbox.take() {
            return None;
        }
        member.received.fetch_add(1, SeqCst);
        self.delivered.fetch_add(1, SeqCst);
        let wakes = member.sender_waits.load(SeqCst) && self.may_send(member);
        Some(wakes && member.sender_waits.swap(false, SeqCst))
    }
}

impl Workload for Chat {
    fn tasks(&self) -> usize {
        self.members.len() * THREADS
    }

    fn address_space(&self, task: usize) -> u32 {
        // The threads of all clients are in one process, and the threads of the server in another
        // process.
        match task % THREADS {
            0 | 3 => 1,
            _ => 2,
        }
    }

    fn step(&self, task: usize, _now_ns: u64, woken: &mut Vec<usize>) -> OperationResult {
        let number = task / THREADS;
        let member = &self.members[number];
        // The task to wake: a thread of this member, or the server's sender of another member.
        let wakes = match task % THREADS {
            0 => self.send(member).map(|w| w.then_some(task + 1)),
            1 => self
                .forward_copy(number)
                .map(|to| to.map(|to| to * THREADS + 2)),
            2 => member
                .server_outbox
                .take()
                .then(|| member.client_inbox.put().then_some(task + 1)),
            _ => self.receive(member).map(|w| w.then_some(task - 3)),
        };
        match wakes {
            Some(wakes) => {
                woken.extend(wakes);
                OperationResult::Done
            }
            None => OperationResult::Waits,
        }
    }

    fn arrivals(&self, _now_ns: u64, _woken: &mut Vec<usize>) {}

    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    fn completed(&self) -> u64 {
        self.delivered.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes the operations of all tasks in turn, and checks the number of copies.
    #[test]
    fn every_message_reaches_every_member_once() {
        let chat = Chat::new(3, 4, 10);
        let mut ready: Vec<usize> = (0..chat.tasks()).collect();
        let mut woken = vec![];
        for turn in 0..20_000 {
            assert!(!ready.is_empty(), "deadlock");
            let task = ready.remove(turn * 7 % ready.len());
            if chat.step(task, 0, &mut woken) == OperationResult::Done {
                ready.push(task);
            }
            for task in woken.drain(..) {
                assert!(!ready.contains(&task), "woke a task that does not wait");
                ready.push(task);
            }
            assert_eq!(chat.sent() * 4, chat.completed() + chat.copies_in_transit());
        }
        assert!(chat.completed() > 2_000);
        assert!(chat.members.iter().all(|m| m.received.load(SeqCst) > 0));
    }

    #[test]
    fn member_waits_for_messages_of_others() {
        let chat = Chat::new(1, 2, 10);
        let mut woken = vec![];
        for _ in 0..10 {
            assert_eq!(chat.step(0, 0, &mut woken), OperationResult::Done);
        }
        assert_eq!(chat.step(0, 0, &mut woken), OperationResult::Waits);
        assert!(woken.is_empty(), "the receiver has not waited yet");
    }
}
