// Members that begin with an underscore are no part of what the package promises: they are shortened in what is published, and in what is measured.
export const mangle = {
  mangleProps: /^_./,
  reserveProps: /^_bc$/, // of the bus, on the wire
}
