// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON objects that keep the order of their entries, and also keep entries with duplicate keys,
//! which the parser of `usher plan` must reject. Parsing takes linear time; the depth of nesting is
//! limited by serde_json, whose error is returned.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// The entries of an object, in the order of the text.
#[derive(Debug, Clone)]
pub(super) struct ObjectEntries<V>(pub Vec<(String, V)>);

/// A value of a program's field.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(untagged)]
pub(super) enum FieldValue {
    Number(f64),
    Text(String),
    Table(ObjectEntries<Value>),
    Other(Value),
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(x) => write!(f, "{x}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Table(_) => f.write_str("an object"),
            Self::Other(Value::Array(_)) => f.write_str("an array"),
            Self::Other(value) => write!(f, "{value}"),
        }
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for ObjectEntries<V> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = ObjectEntries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(ObjectEntries(entries))
    }
}
