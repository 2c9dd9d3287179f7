// SPDX-License-Identifier: GPL-2.0-only
//! The columns by which `usher top` sorts its rows.

/// Column by which the rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortKey {
    /// Number of the program, lowest first.
    Number,
    /// Name, alphabetically.
    Name,
    /// User, alphabetically.
    User,
    /// Busy CPUs, highest first.
    Busy,
    /// CPU time, highest first.
    Time,
    /// Predicted NTT, highest first.
    Ntt,
}

impl SortKey {
    /// All keys, in the order of the columns.
    pub const ALL: [Self; 6] = [
        Self::Number,
        Self::Name,
        Self::User,
        Self::Busy,
        Self::Time,
        Self::Ntt,
    ];

    /// The title of the column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Number => "ID",
            Self::Name => "PROGRAM",
            Self::User => "USER",
            Self::Busy => "BUSY",
            Self::Time => "TIME",
            Self::Ntt => "NTT",
        }
    }

    /// Returns the key that follows after `by` keys, in a circle.
    pub fn moved(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|&key| key == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}
