# The pool of the GPU machines: nomad node pool apply gpu-pool.hcl
# In practice it keeps other submitters off them, and so the coordinator's sums right.
node_pool "gpu" {
  description = "Machines of gangs, placed by the coordinator of Astraeus"
}
