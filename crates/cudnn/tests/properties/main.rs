//! Properties of every attention, tested on random ones: keys, lowering, reading, and what op graphs declare.

mod bounds;
mod declared;
mod derivatives;
mod forms;
mod keys;
mod layouts;
mod lowering;
mod named;
mod origins;
mod quirks;
mod reading;
mod stored;
mod type_level;
mod variants;
mod written;
