// SPDX-License-Identifier: GPL-2.0-only
//! The log of the daemon. If standard error is connected to the systemd journal (`JOURNAL_STREAM`),
//! messages go to the journal in its native protocol. Otherwise, messages are lines on standard
//! error, each with its time.
//!
//! All threads send their messages through one bounded queue to a thread that writes. No thread of
//! the daemon waits for a slow journal or for a full pipe: while the queue is full, messages are
//! dropped, and their number is written later. [`flush`] waits at most twice [`FLUSH_MAX`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use log::kv::{Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use systemd_journal_logger::{JournalLog, connected_to_journal};

use crate::output;

/// Names of the levels, in the order of `log`.
pub const LOG_LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];

/// Maximum number of messages that wait to be written.
const QUEUE_MAX: usize = 1024;
/// Upper limit of each of the two waits of [`flush`]: for space in the queue, and for the writer.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Whether lines on standard error begin with their time. The errors of a start in the foreground
/// have no times.
static STAMPED: AtomicBool = AtomicBool::new(false);

/// A message on its way to the writer.
enum Queued {
    Message(Message),
    /// All messages before this entry are written when the sender is dropped.
    Flush(SyncSender<()>),
}

struct Message {
    at: Timestamp,
    level: Level,
    text: String,
    fields: Vec<(String, String)>,
}

struct Logger {
    queue: SyncSender<Queued>,
    dropped: AtomicU64,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries log details of their protocols.
        metadata.target().starts_with("usher")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut fields = Fields(Vec::new());
        // The visitor never fails.
        let _ = record.key_values().visit(&mut fields);
        let message = |level, text| Message {
            at: Timestamp::now(),
            level,
            text,
            fields: Vec::new(),
        };
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let text = format!("{dropped} messages were lost, because they could not be written");
            if self
                .queue
                .try_send(Queued::Message(message(Level::Warn, text)))
                .is_err()
            {
                self.dropped.fetch_add(dropped, Ordering::Relaxed);
            }
        }
        let message = Message {
            fields: fields.0,
            ..message(record.level(), record.args().to_string())
        };
        if self.queue.try_send(Queued::Message(message)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        let (written, waits) = sync_channel(0);
        let deadline = std::time::Instant::now() + FLUSH_MAX;
        let mut request = Queued::Flush(written);
        while let Err(error) = self.queue.try_send(request) {
            let std::sync::mpsc::TrySendError::Full(unsent) = error else {
                return;
            };
            if std::time::Instant::now() > deadline {
                return;
            }
            request = unsent;
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = waits.recv_timeout(FLUSH_MAX);
    }
}

/// Collects the fields of a record.
struct Fields(Vec<(String, String)>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        self.0.push((key.to_string(), value.to_string()));
        Ok(())
    }
}

/// Starts the log of this process.
///
/// # Errors
/// The thread cannot be started, or the process has a log already.
pub fn start(level: LevelFilter) -> anyhow::Result<()> {
    let journal = connected_to_journal()
        .then(JournalLog::new)
        .and_then(Result::ok)
        .map(|journal| journal.with_syslog_identifier("usher".to_owned()));
    let (queue, messages) = sync_channel(QUEUE_MAX);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_all(&messages, journal.as_ref()))
        .context("starting a thread")?;
    let dropped = AtomicU64::new(0);
    log::set_boxed_logger(Box::new(Logger { queue, dropped })).context("starting the log")?;
    log::set_max_level(level);
    Ok(())
}

/// From now on, lines on standard error begin with their time.
pub fn stamp_lines() {
    STAMPED.store(true, Ordering::Relaxed);
}

/// Writes the waiting messages, within twice [`FLUSH_MAX`].
pub fn flush() {
    log::logger().flush();
}

fn write_all(messages: &Receiver<Queued>, journal: Option<&JournalLog>) {
    for queued in messages {
        let message = match queued {
            Queued::Message(message) => message,
            Queued::Flush(written) => {
                drop(written);
                continue;
            }
        };
        let is_sent = journal.is_some_and(|journal| send(journal, &message).is_ok());
        if !is_sent {
            let stamp = STAMPED.load(Ordering::Relaxed).then_some(message.at);
            // Without a reader of standard error, messages are lost.
            let line = line(stamp, message.level, &message.text);
            let _ = output::write_line(&mut std::io::stderr(), &line);
        }
    }
}

/// Formats a line of standard error. Control characters are escaped.
fn line(at: Option<Timestamp>, level: Level, text: &str) -> String {
    let text = output::shown(text);
    match at {
        Some(at) => {
            let level = level.as_str().to_lowercase();
            format!(
                "{} {level} usher: {text}",
                at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
            )
        }
        None => format!("usher: {text}"),
    }
}

fn send(journal: &JournalLog, message: &Message) -> std::io::Result<()> {
    let fields = message.fields.iter();
    let fields: Vec<(&str, &str)> = fields.map(|(key, value)| (&**key, &**value)).collect();
    let fields = fields.as_slice();
    journal.journal_send(
        &Record::builder()
            .level(message.level)
            .target("usher")
            .args(format_args!("{}", message.text))
            .key_values(&fields)
            .build(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_time_and_a_level_and_no_control_characters() {
        let at: Timestamp = "2026-11-27T03:04:05.678901Z".parse().unwrap();
        assert_eq!(
            line(Some(at), Level::Warn, "a\u{1b}[2Jb"),
            format!(
                "2026-11-27T03:04:05.678Z warn usher: {}",
                output::shown("a\u{1b}[2Jb")
            )
        );
        assert_eq!(line(None, Level::Error, "a"), "usher: a");
    }
}
