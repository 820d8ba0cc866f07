//! Reads the fields of one config, nested or not, with a reason for each invalid value.
//!
//! A field is looked for under all its names: in what the config says of one layer, in the config, and in the defaults
//! of its class. `null` means that the config has no value, so defaults do not count then.

use serde_json::{Map, Value};

use crate::codes;
use qkvault_graph::registry::Code;
use qkvault_graph::{Reason, Refusal};

use super::defaults::{KnownDefaults, known};

/// Names of fields, the usual one first. A name with dots is inside nested objects.
pub(crate) type FieldNames<'n> = &'n [&'n str];

/// One config, or the part of it that is about one stack of layers.
#[derive(Clone)]
pub(crate) struct ConfigFields<'a> {
    /// Where the config is in the file, with a dot at the end, or empty.
    pub(crate) path: String,
    /// What the config says of one layer alone.
    pub(crate) layer: Option<&'a Map<String, Value>>,
    /// The config.
    pub(crate) json: &'a Map<String, Value>,
    /// The family whose defaults count.
    pub(crate) family: String,
    /// What is known of the family.
    pub(crate) known: Option<&'static KnownDefaults>,
}

/// The reasons that were found, so that one error has every problem of a config.
#[derive(Default)]
pub(crate) struct Faults(pub(crate) Vec<Reason>);

/// Most reasons about one config. A long list that is wrong is wrong in each entry.
const MOST_REASONS: usize = 64;

impl Faults {
    /// Adds a reason, once, unless there are many already.
    pub(crate) fn add(&mut self, reason: Reason) {
        if self.0.len() < MOST_REASONS && !self.0.contains(&reason) {
            self.0.push(reason);
        }
    }

    /// The value, or its default if there are reasons against it.
    pub(crate) fn take<T: Default>(&mut self, result: Result<T, Refusal>) -> T {
        result.unwrap_or_else(|refusal| {
            Vec::from(refusal).into_iter().for_each(|reason| self.add(reason));
            T::default()
        })
    }

    /// The refusal, if there are reasons.
    pub(crate) fn done(self) -> Result<(), Refusal> {
        Refusal::from_reasons(self.0).map_or(Ok(()), Err)
    }
}

fn lookup<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let mut keys = name.split('.');
    let first = map.get(keys.next()?)?;
    keys.try_fold(first, |at, key| at.get(key))
}

impl<'a> ConfigFields<'a> {
    /// The fields of a config of this family.
    pub(crate) fn new(path: &str, json: &'a Map<String, Value>, family: &str) -> ConfigFields<'a> {
        ConfigFields { path: path.to_owned(), layer: None, json, family: family.to_owned(), known: known(family) }
    }

    /// The name of a field as a user sees it.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A reason about a field.
    pub(crate) fn reason(
        &self,
        code: &Code,
        name: &str,
        given: impl Into<String>,
        needed: impl Into<String>,
    ) -> Reason {
        code.reason(given).at(self.at(name)).with_needed(needed)
    }

    /// A reason that a required field is absent.
    pub(crate) fn missing(&self, names: FieldNames<'_>) -> Reason {
        let some = names.iter().take(3).copied().collect::<Vec<_>>().join(" or ");
        let needed = format!("{some} is needed to plan attention");
        self.reason(&codes::CONFIG_MISSING, names.first().copied().unwrap_or_default(), "absent", needed)
    }

    /// The names of a field, each followed by the family's own name for it.
    fn all<'n>(&self, names: FieldNames<'n>) -> Vec<&'n str> {
        let own = |name: &&'n str| self.known.and_then(|known| known.names.get(*name)).map(String::as_str);
        names.iter().flat_map(|name| [Some(*name), own(name)]).flatten().collect()
    }

    /// The value that the config itself gives, and the name that it has there.
    pub(crate) fn said<'n>(&self, names: FieldNames<'n>) -> Option<(&'n str, &'a Value)> {
        let names = self.all(names);
        [self.layer, Some(self.json)].into_iter().flatten().find_map(|map| {
            names.iter().find_map(|name| lookup(map, name).filter(|v| !v.is_null()).map(|value| (*name, value)))
        })
    }

    /// The value of a field, and the name that it has.
    pub(crate) fn value<'n>(&self, names: FieldNames<'n>) -> Option<(&'n str, &'a Value)> {
        if let Some(found) = self.said(names) {
            return Some(found);
        }
        let names = self.all(names);
        if names.iter().any(|name| lookup(self.json, name).is_some()) {
            return None;
        }
        let known = self.known?;
        names.iter().find_map(|name| known.fields.get(*name).filter(|v| !v.is_null()).map(|value| (*name, value)))
    }

    /// A whole number from 1 to 2^31 - 1, or `None` if the field is absent.
    pub(crate) fn int(&self, names: FieldNames<'_>) -> Result<Option<i64>, Refusal> {
        let Some((name, value)) = self.value(names) else { return Ok(None) };
        self.whole(name, value, 1).map(Some)
    }

    /// A whole number of at least `least`.
    pub(crate) fn whole(&self, name: &str, value: &Value, least: i64) -> Result<i64, Refusal> {
        let most = i64::from(i32::MAX);
        match value.as_i64() {
            Some(n) if (least..=most).contains(&n) => Ok(n),
            _ => {
                let needed = format!("a whole number from {least} to {most}");
                Err(self.reason(&codes::CONFIG_FIELD, name, shown(value), needed).into())
            }
        }
    }

    /// A positive number, or `None` if the field is absent.
    pub(crate) fn float(&self, names: FieldNames<'_>) -> Result<Option<f64>, Refusal> {
        let Some((name, value)) = self.value(names) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => Err(self.reason(&codes::CONFIG_FIELD, name, shown(value), "a positive number").into()),
        }
    }

    /// True or false, or `None` if the field is absent.
    pub(crate) fn flag(&self, names: FieldNames<'_>) -> Result<Option<bool>, Refusal> {
        match self.value(names) {
            None => Ok(None),
            Some((_, Value::Bool(flag))) => Ok(Some(*flag)),
            Some((name, other)) => Err(self.reason(&codes::CONFIG_FIELD, name, shown(other), "true or false").into()),
        }
    }

    /// The text of a field.
    pub(crate) fn text(&self, names: FieldNames<'_>) -> Option<&'a str> {
        self.value(names).and_then(|(_, value)| value.as_str())
    }

    /// The list of a field, or `None` if the field is absent.
    pub(crate) fn list<'n>(&self, names: FieldNames<'n>) -> Result<Option<(&'n str, &'a Vec<Value>)>, Refusal> {
        match self.value(names) {
            None => Ok(None),
            Some((name, Value::Array(list))) => Ok(Some((name, list))),
            Some((name, other)) => Err(self.reason(&codes::CONFIG_FIELD, name, shown(other), "a list").into()),
        }
    }

    /// A reason if the config gives two values under two names of one field.
    pub(crate) fn agree(&self, names: FieldNames<'_>) -> Result<(), Refusal> {
        let said = names.iter().filter_map(|name| self.json.get(*name).filter(|v| v.is_i64()).map(|v| (*name, v)));
        let said: Vec<(&str, &Value)> = said.collect();
        match said.iter().find(|(_, value)| *value != said[0].1) {
            None => Ok(()),
            Some((name, value)) => {
                let (first, other) = said[0];
                let needed = format!("one value: {} is {other}", self.at(first));
                Err(self.reason(&codes::CONFIG_FIELD, name, value.to_string(), needed).into())
            }
        }
    }
}

/// A value in an error: short, so that a long list is not.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    let end = text.char_indices().nth(80).map(|(at, _)| at);
    end.map_or_else(|| text.clone(), |end| format!("{}...", &text[..end]))
}
