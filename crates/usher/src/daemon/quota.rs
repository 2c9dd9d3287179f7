// SPDX-License-Identifier: GPL-2.0-only
//! The quotas of the daemon's socket, and the error message that a client receives when its
//! connection is closed because of a quota.
//!
//! The event loop (`server`) and `connection` enforce the quotas. The values are in
//! `Limits::default` of `server`, and in docs/security.md:
//!
//! - 256 connections of one user other than root;
//! - 3,840 connections while a user other than root connects, and 4,096 while root connects;
//! - 16 MiB of buffered messages and replies of one user other than root;
//! - 256 KiB of one message, also of root.

use serde_json::json;

/// A limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Connections of one user.
    ConnectionsPerUser,
    /// Connections of all users.
    Connections,
    /// Bytes of messages and replies that are buffered for one user.
    Bytes,
    /// Bytes of one message.
    Message,
}

impl Quota {
    fn name(self) -> &'static str {
        match self {
            Self::ConnectionsPerUser => "connections per user",
            Self::Connections => "connections of all users",
            Self::Bytes => "bytes per user",
            Self::Message => "bytes of a message",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::ConnectionsPerUser => {
                "close some of your connections, or end programs that \
                                         hold one"
            }
            Self::Connections => {
                "try again later; as root, list the programs of users with 'usher status'"
            }
            Self::Message => "send fewer or shorter arguments",
            Self::Bytes => "read replies sooner, or use fewer connections at a time",
        }
    }
}

/// Returns the last message on a connection that exceeds a quota. The client receives the message
/// as the reply to its first call.
pub fn refusal(quota: Quota, limit: usize) -> Vec<u8> {
    let message = json!({
        "error": "org.usher.Usher1.QuotaExceeded",
        "parameters": { "quota": quota.name(), "limit": limit, "remedy": quota.remedy() },
    });
    let mut bytes = message.to_string().into_bytes();
    bytes.push(0);
    bytes
}
